"""Tunes of the past, as a storage lists them."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.bounds import Count, Rate, Seconds


@dataclass(frozen=True)
class PastTune:
    """A stored tune; `config` and the rate are set once it has a result. `started_at` is in seconds since 1970 (UTC)."""

    name: str
    title: str = ""
    started_at: Seconds = 0.0
    host: str = ""
    device: str = ""
    limits: str = ""
    trials: Count = 0
    config: str = ""
    samples_per_second: Rate | None = None
