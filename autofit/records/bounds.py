"""Bounds of the figures in records that come from files and storages: what is read there may be damaged, or made to harm.

They are checked where a record is read, by pydantic, and not where our own code makes one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOST = 2**62  # bytes, samples, parameters
_MOST_RATE, _MOST_RATIO = 1e18, 1e12  # far above any reading, and far below where sums overflow
_MOST_SECONDS = 1e11  # of a duration, or since 1970: three thousand years

# whole numbers from 0 on, from 1 on, and of knobs (-1 is AUTOTUNE); durations and times since 1970; samples or bytes a
# second; ratios
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Knob = Annotated[int, Field(ge=-1, le=_MOST)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Rate = Annotated[float, Field(ge=0, le=_MOST_RATE)]
Ratio = Annotated[float, Field(ge=0, le=_MOST_RATIO)]
