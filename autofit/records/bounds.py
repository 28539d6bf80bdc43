"""Bounds of the figures in records.

Files and storages may be damaged or malicious, so pydantic checks these bounds when it reads a record from one. Records
that autofit makes itself are not checked.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOST = 2**62  # bytes, samples, parameters
_MOST_RATE, _MOST_RATIO = 1e18, 1e12  # far above any reading, and far below where sums overflow
_MOST_SECONDS = 1e11  # of a duration, or since 1970: three thousand years

# Count: from 0 on; Positive: from 1 on; Knob: -1 is AUTOTUNE; Seconds: durations, and times since 1970;
# Rate: samples or bytes a second
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Knob = Annotated[int, Field(ge=-1, le=_MOST)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Rate = Annotated[float, Field(ge=0, le=_MOST_RATE)]
Ratio = Annotated[float, Field(ge=0, le=_MOST_RATIO)]
