"""The feasible frontier: how large a batch fits at each setting of the other knobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autofit.records.result import FrontierPoint
from autofit.records.trial import FitConfig, Limits, Trial


def frontier(trials: Iterable[Trial], limits: Limits) -> tuple[FrontierPoint, ...]:
    """For each tried setting of the other knobs, the largest batch that fits and the smallest that ran out of memory."""
    fitted: dict[FitConfig, list[int]] = {}
    failed: dict[FitConfig, list[int]] = {}
    for trial in trials:
        others = replace(trial.config, batch_size=None)
        fitted.setdefault(others, [])
        failed.setdefault(others, [])
        if trial.config.batch_size is None:
            continue
        if trial.fits(limits):
            fitted[others].append(trial.config.batch_size)
        elif trial.measurement.outcome.is_oom:
            failed[others].append(trial.config.batch_size)
    return tuple(
        FrontierPoint(others, max(fitted[others], default=None), min(failed[others], default=None)) for others in fitted
    )
