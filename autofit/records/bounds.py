"""Bounds of the numbers in records.

A file or a storage may be damaged or malicious, so pydantic checks these bounds when it reads a record from there. Records
that autofit creates itself are not checked.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOST = 2**62  # bytes, samples, parameters
_MOST_RATE, _MOST_RATIO = 1e18, 1e12  # far above any reading, and small enough that sums do not overflow
_MOST_SECONDS = 1e11  # three thousand years: bounds durations and times since 1970

# Count is at least 0, Positive at least 1. Knob is at least -1, which is AUTOTUNE. Seconds is a duration, or a time since
# 1970. Rate is in samples or bytes per second.
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Knob = Annotated[int, Field(ge=-1, le=_MOST)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Rate = Annotated[float, Field(ge=0, le=_MOST_RATE)]
Ratio = Annotated[float, Field(ge=0, le=_MOST_RATIO)]
