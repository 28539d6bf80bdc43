"""Bounds of the figures in records that come from files and storages: what is read there may be damaged, or made to harm.

They are checked where a record is read, by pydantic, and not where our own code makes one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOST = 2**62  # bytes, samples, parameters
_MOST_SECONDS = 1e11  # of a duration, or since 1970: three thousand years

Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Knob = Annotated[int, Field(ge=-1, le=_MOST)]
"""The value of a knob; -1 is AUTOTUNE."""
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Rate = Annotated[float, Field(ge=0, le=1e18)]
Ratio = Annotated[float, Field(ge=0, le=1e12)]
