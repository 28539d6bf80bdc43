"""Trials -> feasible frontier -> choice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autofit.records import FitConfig, Limits, Trial
from autofit.results import FrontierPoint
from autofit.space import condemned, cost

_NOT_WAITING = 0.95  # TensorFlow's profiler calls a step that waits under 5 % of its time not input-bound
_AT_CEILING = 0.85


def frontier(trials: Iterable[Trial], limits: Limits) -> tuple[FrontierPoint, ...]:
    """For each setting of the other knobs that was tried: the largest batch that fitted, the smallest that did not."""
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


def choose(trials: Sequence[Trial], limits: Limits, tolerance: float) -> Trial | None:
    """The cheapest trial whose throughput is within `tolerance` (0.02 is 2 %) of the best; None when none fits.

    A config of which any trial failed is out, and so is what a known OOM condemns, though it may have run before.
    """
    out = {trial.config for trial in trials if not trial.fits(limits)}
    ooms = [(trial.config, trial.measurement.outcome) for trial in trials if trial.measurement.outcome.is_oom]
    there = [
        trial
        for trial in trials
        if trial.measurement.samples_per_second
        and trial.config not in out
        and not any(condemned(trial.config, config, outcome) for config, outcome in ooms)
    ]
    if not there:
        return None
    best = max(trial.measurement.samples_per_second or 0 for trial in there)
    near = [trial for trial in there if (trial.measurement.samples_per_second or 0) >= (1 - tolerance) * best]
    return min(near, key=lambda trial: cost(trial.config))


def bottleneck(end_to_end: float, compute: float | None, inputs: float | None) -> str:
    """What holds the rate back: "compute", "input", or "contention" when neither ceiling is reached.

    Args:
        end_to_end: samples per second of the real `fit`.
        compute: samples per second of the step on one cached batch.
        inputs: samples per second of the input pipeline alone.
    """
    if compute is None or inputs is None:
        return "unknown"
    if end_to_end >= _NOT_WAITING * compute:
        return "compute"
    lower = min(compute, inputs)
    if end_to_end < _AT_CEILING * lower:
        return "contention"
    return "compute" if compute <= inputs else "input"
