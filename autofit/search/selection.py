"""Which of the trials to choose, and which may be better. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autofit.records.trial import FitConfig, Limits, Measurement, Trial
from autofit.search.config_arrays import ConfigArrays
from autofit.search.space import cost, dominated_by

_LEAST_CHANCE_DEVIATIONS = -1.28  # a chance to be faster of 10 %; below that another run is not worthwhile
_MOST_RIVALS = 2
_LEAST_SURPRISE = 0.15  # log rate: smaller surprises are selection bias, the best of several noisy readings
_SURPRISE_DEVIATIONS = 2.0  # of both readings' noise


def choose(
    trials: Sequence[Trial], limits: Limits, tolerance: float, rates: Mapping[FitConfig, float] | None = None
) -> Trial | None:
    """The cheapest trial whose throughput is within `tolerance` (0.02 is 2 %) of the best; None when none fits.

    Configs with a failed trial, and those that an OOM rules out, are not eligible. `rates` are estimates (samples per
    second) that replace single readings.
    """
    by_rate = sorted(eligible(trials, limits), key=lambda trial: trial.measurement.samples_per_second or 0.0)
    candidates = {trial.config: trial for trial in by_rate}
    if not candidates:
        return None
    readings = {config: trial.measurement.samples_per_second or 0.0 for config, trial in candidates.items()}
    return candidates[cheapest({**readings, **{c: r for c, r in (rates or {}).items() if c in candidates}}, tolerance)]


def cheapest(rates: Mapping[FitConfig, float], tolerance: float) -> FitConfig:
    """The cheapest config whose rate (samples per second) is within `tolerance` of the best."""
    least = (1 - tolerance) * max(rates.values())
    return min((config for config, rate in rates.items() if rate >= least), key=cost)


def updated_rate(mean: float, deviation: float, measurement: Measurement) -> float:
    """Update the estimated rate of a config by one more measurement; returns samples per second.

    Args:
        mean: logarithm of the estimated rate.
        deviation: its standard deviation.
        measurement: of the config; weighed against the estimate by their variances.
    """
    weight = deviation**2 / (deviation**2 + measurement.rate_noise**2)
    return math.exp(mean + weight * (math.log(measurement.samples_per_second or 1.0) - mean))


def finalists(
    trials: Sequence[Trial], limits: Limits, tolerance: float, estimates: Mapping[FitConfig, tuple[float, float]]
) -> tuple[Trial, ...]:
    """The choice, preceded by its rivals: configs that, within the noise, may be faster by more than the tolerance.

    Args:
        trials: all trials.
        limits: under which a trial fits.
        tolerance: see `choose`.
        estimates: for each config the logarithm of its rate and its standard deviation.
    """
    chosen = choose(trials, limits, tolerance, {config: math.exp(mean) for config, (mean, _) in estimates.items()})
    if chosen is None or chosen.config not in estimates:
        return () if chosen is None else (chosen,)
    mean, deviation = estimates[chosen.config]

    def lead_deviations(trial: Trial) -> float:
        own_mean, own_deviation = estimates[trial.config]
        return (own_mean - mean - math.log1p(tolerance)) / math.hypot(own_deviation, deviation)

    others = {t.config: t for t in eligible(trials, limits) if t.config in estimates and t.config != chosen.config}
    rivals = [t for t in others.values() if lead_deviations(t) > _LEAST_CHANCE_DEVIATIONS]
    return (*sorted(rivals, key=lead_deviations, reverse=True)[:_MOST_RIVALS], chosen)


def overlooked(
    trials: Sequence[Trial], limits: Limits, config: FitConfig, samples_per_second: float, noise: float
) -> Trial | None:
    """The trial whose reading exceeds the confirmed rate most; None where noise explains every reading.

    Args:
        trials: all trials.
        limits: under which a trial fits.
        config: the choice.
        samples_per_second: its confirmed rate.
        noise: relative standard deviation of that rate.
    """
    surprises: list[tuple[float, Trial]] = []
    for trial in eligible(trials, limits):
        lead = math.log((trial.measurement.samples_per_second or 1.0) / samples_per_second)
        explained = max(_LEAST_SURPRISE, _SURPRISE_DEVIATIONS * math.hypot(noise, trial.measurement.rate_noise))
        if trial.config != config and lead > explained:
            surprises.append((lead, trial))
    return max(surprises, key=lambda pair: pair[0])[1] if surprises else None


def eligible(trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """The trials that may be chosen: every trial of their config fits, and no OOM rules it out."""
    failed = {trial.config for trial in trials if not trial.fits(limits)}
    arrays = ConfigArrays.of([trial.config for trial in trials])
    dominated = np.zeros(len(arrays), bool)
    for trial in trials:
        dominated |= dominated_by(arrays, trial.config, trial.measurement.outcome)
    return [
        trial
        for trial, is_dominated in zip(trials, dominated, strict=True)
        if trial.measurement.samples_per_second and trial.config not in failed and not is_dominated
    ]
