"""Trials -> feasible frontier -> choice. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autofit.columns import Columns
from autofit.records import FitConfig, Limits, Trial
from autofit.results import FrontierPoint
from autofit.space import condemned, cost

_NOT_WAITING = 0.95  # TensorFlow's profiler calls a step that waits under 5 % of its time not input-bound
_AT_CEILING = 0.85
_ONE_IN_TEN = -1.28  # standard deviations: a chance below that is not worth another run
_MOST_RIVALS = 2
_SURPRISE = 0.15  # in logarithms: a reading above what was confirmed by less is what the best of several noisy ones is
_SURE = 2.0  # standard deviations


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


def choose(
    trials: Sequence[Trial], limits: Limits, tolerance: float, rates: Mapping[FitConfig, float] | None = None
) -> Trial | None:
    """The cheapest trial whose throughput is within `tolerance` (0.02 is 2 %) of the best; None when none fits.

    A config of which any trial failed is out, and so is what a known OOM condemns, though it may have run before.
    `rates` are what is thought of configs, samples per second, where that is better than their one reading.
    """
    there = eligible(trials, limits)
    if not there:
        return None
    known = [(rates or {}).get(trial.config, trial.measurement.samples_per_second or 0) for trial in there]
    near = [trial for trial, rate in zip(there, known, strict=True) if rate >= (1 - tolerance) * max(known)]
    return min(near, key=lambda trial: cost(trial.config))


def finalists(
    trials: Sequence[Trial], limits: Limits, tolerance: float, thoughts: Mapping[FitConfig, tuple[float, float]]
) -> tuple[Trial, ...]:
    """The choice, and before it the configs that may be faster by more than the tolerance for all that noise lets us know.

    Args:
        trials: all of them.
        limits: what fits.
        tolerance: see `choose`.
        thoughts: of each config the logarithm of its rate, and its standard deviation.
    """
    chosen = choose(trials, limits, tolerance, {c: math.exp(mean) for c, (mean, _) in thoughts.items()})
    if chosen is None or chosen.config not in thoughts:
        return () if chosen is None else (chosen,)
    mean, deviation = thoughts[chosen.config]

    def chance(trial: Trial) -> float:
        m, d = thoughts[trial.config]
        return (m - mean - math.log1p(tolerance)) / math.hypot(d, deviation)

    others = {t.config: t for t in eligible(trials, limits) if t.config in thoughts and t.config != chosen.config}
    rivals = sorted((t for t in others.values() if chance(t) > _ONE_IN_TEN), key=chance, reverse=True)
    return (*rivals[:_MOST_RIVALS], chosen)


def overlooked(
    trials: Sequence[Trial], limits: Limits, config: FitConfig, samples_per_second: float, noise: float
) -> Trial | None:
    """The trial that read far more than what the choice was confirmed at; None where noise may explain it.

    Args:
        trials: all of them.
        limits: what fits.
        config: the choice.
        samples_per_second: what it was confirmed at.
        noise: the relative standard deviation of that.
    """
    found: list[tuple[float, Trial]] = []
    for trial in eligible(trials, limits):
        more = math.log((trial.measurement.samples_per_second or 1.0) / samples_per_second)
        if trial.config != config and more > max(_SURPRISE, _SURE * math.hypot(noise, trial.measurement.rate_noise)):
            found.append((more, trial))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def eligible(trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """The trials that may be chosen: no run of their config failed, and no known OOM condemns it."""
    out = {trial.config for trial in trials if not trial.fits(limits)}
    at = Columns.of([trial.config for trial in trials])
    lost = np.zeros(len(at), bool)
    for trial in trials:
        lost |= condemned(at, trial.config, trial.measurement.outcome)
    return [
        trial
        for trial, is_lost in zip(trials, lost, strict=True)
        if trial.measurement.samples_per_second and trial.config not in out and not is_lost
    ]


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
