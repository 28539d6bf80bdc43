"""Quantities: the bounds within which records are read, and how messages show them."""

from __future__ import annotations

import re
import signal
from typing import Annotated

from pydantic import Field

# A file or a storage may be damaged or malicious, so pydantic checks these bounds when it reads a
# record from there. Records that autofit creates itself are not checked.
_MOST = 2**62  # bytes, samples, parameters
# far above any reading, and small enough that sums do not overflow
_MOST_RATE = 1e18
_MOST_RATIO = 1e12
_MOST_SECONDS = 1e11  # three thousand years: bounds durations and times since 1970
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Knob = Annotated[int, Field(ge=-1, le=_MOST)]  # -1 is AUTOTUNE
# a duration, or a time since 1970
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Rate = Annotated[float, Field(ge=0, le=_MOST_RATE)]  # in samples or bytes per second
Ratio = Annotated[float, Field(ge=0, le=_MOST_RATIO)]

# control characters except tab and line feed; characters that change the direction of writing; lone
# surrogates
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def signal_name(number: int) -> str:
    """Name a signal: `SIGSEGV`, or `signal 34` for a real-time signal, which has no name."""
    return next(
        (known.name for known in signal.Signals if known == number), f"signal {number}"
    )


def how_it_ended(exit_code: int) -> str:
    """Describe how a process ended, given its exit status (-N for signal N): `died by SIGKILL`,
    `exited with status 3`.
    """
    if exit_code < 0:
        return f"died by {signal_name(-exit_code)}"
    return f"exited with status {exit_code}"


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: `1 trial`, `3 trials`, `2 processes`."""
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"


def format_bytes(count: float) -> str:
    """Format a byte count with three digits and a binary unit: `1.50 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            decimals = 0 if unit == "B" else max(0, 3 - len(str(int(abs(count)))))
            return f"{count:.{decimals}f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """Format a duration: `4.2 s`, `1 min 05 s`, `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_rate(per_second: float) -> str:
    """Format a rate without its unit: whole numbers with commas, two digits below ten."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def format_spread(spread: float) -> str:
    """Format the half-width of an interval relative to its centre: `±3%`; from 100% on, its number
    says nothing.
    """
    return f"±{spread:.0%}" if spread < 1 else "±100% or more"


def printable(text: str) -> str:
    """Replace control characters, characters that change the direction of writing, and lone
    surrogates by �.
    """
    return _CONTROLS.sub("\ufffd", text)
