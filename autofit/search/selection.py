"""Trials -> the one to choose, and those that may be better. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autofit.records.trial import FitConfig, Limits, Measurement, Trial
from autofit.search.config_arrays import ConfigArrays
from autofit.search.space import cost, dominated_by

_ONE_IN_TEN = -1.28  # standard deviations: a chance below that is not worth another run
_MOST_RIVALS = 2
_SURPRISE = 0.15  # in logarithms: a reading above what was confirmed by less is what the best of several noisy ones is
_SURE = 2.0  # standard deviations


def choose(
    trials: Sequence[Trial], limits: Limits, tolerance: float, rates: Mapping[FitConfig, float] | None = None
) -> Trial | None:
    """The cheapest trial whose throughput is within `tolerance` (0.02 is 2 %) of the best; None when none fits.

    A config is out when any of its trials failed, or when it is at least as large as one that ran out of memory.
    `rates` are estimates (samples per second) that take the place of the single readings.
    """
    by_rate = sorted(eligible(trials, limits), key=lambda trial: trial.measurement.samples_per_second or 0.0)
    candidates = {trial.config: trial for trial in by_rate}
    if not candidates:
        return None
    readings = {config: trial.measurement.samples_per_second or 0.0 for config, trial in candidates.items()}
    return candidates[cheapest({**readings, **{c: r for c, r in (rates or {}).items() if c in candidates}}, tolerance)]


def cheapest(rates: Mapping[FitConfig, float], tolerance: float) -> FitConfig:
    """The cheapest config whose rate (samples per second) is within `tolerance` of the best."""
    enough = (1 - tolerance) * max(rates.values())
    return min((config for config, rate in rates.items() if rate >= enough), key=cost)


def updated_rate(mean: float, deviation: float, measurement: Measurement) -> float:
    """The estimated rate of a config after one more measurement, samples per second.

    Args:
        mean: logarithm of the rate, as estimated before.
        deviation: its standard deviation.
        measurement: of the config; weighed against the estimate by their variances.
    """
    weight = deviation**2 / (deviation**2 + measurement.rate_noise**2)
    return math.exp(mean + weight * (math.log(measurement.samples_per_second or 1.0) - mean))


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
    arrays = ConfigArrays.of([trial.config for trial in trials])
    lost = np.zeros(len(arrays), bool)
    for trial in trials:
        lost |= dominated_by(arrays, trial.config, trial.measurement.outcome)
    return [
        trial
        for trial, is_lost in zip(trials, lost, strict=True)
        if trial.measurement.samples_per_second and trial.config not in out and not is_lost
    ]
