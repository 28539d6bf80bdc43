"""Choose a trial of a search, and find the trials that may be better. This module has no side effects."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from autofit.records.result import DecidedBy, PassedOver, RateEstimate
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Limits, Measurement, Trial
from autofit.search.acquisition import expected_improvement
from autofit.search.config_arrays import ConfigArrays
from autofit.search.feasibility import dominated_by
from autofit.search.space import cost, distance

_WORTHWHILE_SHARE = 0.25  # a gain in log rate of this share of the tolerance is worth another run (simulated searches)
_LEAST_GAIN = 0.001  # in log rate: a smaller gain is not worth another run, however small the tolerance
_MOST_RIVALS = 2
_LEAST_SURPRISE = 0.15  # in log rate: smaller surprises are selection bias (the best of several noisy readings)
_SURPRISE_DEVIATIONS = 2.0  # a surprise is larger than this many standard deviations of the combined noise


def choose(
    trials: Sequence[Trial],
    limits: Limits,
    tolerance: float,
    baseline: FitConfig,
    rates: Mapping[FitConfig, float] | None = None,
) -> Trial | None:
    """Choose the trial nearest to the baseline among those within `tolerance` (0.02 is 2%) of the best; None if none fits.

    `rates` are estimates in samples per second; they replace the readings of single trials.
    """
    candidates = {trial.config: trial for trial in sorted(eligible(trials, limits), key=lambda t: t.samples_per_second)}
    if not candidates:
        return None
    estimated = {config: (rates or {}).get(config, trial.samples_per_second) for config, trial in candidates.items()}
    return candidates[nearest(estimated, tolerance, baseline)]


def nearest(rates: Mapping[FitConfig, float], tolerance: float, baseline: FitConfig) -> FitConfig:
    """Return the config nearest to the baseline among those whose rate is within `tolerance` of the highest."""
    least = (1 - tolerance) * max(rates.values())
    near = (config for config, rate in rates.items() if rate >= least)
    return min(near, key=lambda config: (distance(config, baseline), cost(config)))


def updated(estimate: RateEstimate, measurement: Measurement) -> RateEstimate:
    """Update the estimated rate of a config with another measurement; both are weighted by their variances."""
    variance, noise = estimate.deviation**2, measurement.rate_noise**2
    weight, mean = variance / (variance + noise), math.log(estimate.samples_per_second)
    updated_mean = mean + weight * (math.log(measurement.samples_per_second or 1.0) - mean)
    return RateEstimate(math.exp(updated_mean), math.sqrt(variance * noise / (variance + noise)))


def finalists(
    trials: Sequence[Trial],
    limits: Limits,
    tolerance: float,
    baseline: FitConfig,
    estimates: Mapping[FitConfig, tuple[float, float]],
) -> tuple[Trial, ...]:
    """Return the rivals of the choice, then the choice. A rival may prove faster than the choice if both run again.

    A rival is worth another run if the expected gain from that run is large enough; only a lead above the tolerance counts
    as a gain. Noisy runs change the estimates little, so their expected gain is small. `estimates` are log rates and their
    standard deviations.
    """
    rates = {config: math.exp(mean) for config, (mean, _) in estimates.items()}
    chosen = choose(trials, limits, tolerance, baseline, rates)
    if chosen is None or chosen.config not in estimates:
        return () if chosen is None else (chosen,)
    others = {t.config: t for t in eligible(trials, limits) if t.config in estimates and t.config != chosen.config}
    runs = [*others.values(), chosen]
    means, deviations = np.array([estimates[trial.config] for trial in runs]).T
    variances, noises = np.square(deviations), np.square([trial.measurement.rate_noise for trial in runs])
    variance, noise = variances[:-1] + variances[-1], noises[:-1] + noises[-1]
    moved = variance / np.sqrt(variance + noise)
    gains = expected_improvement(means[:-1] - means[-1], moved, math.log1p(tolerance))
    least = max(_WORTHWHILE_SHARE * tolerance, _LEAST_GAIN)
    worthwhile = [int(index) for index in np.argsort(-gains, kind="stable") if gains[index] >= least]
    return (*(runs[index] for index in worthwhile[:_MOST_RIVALS]), chosen)


def overlooked(
    trials: Sequence[Trial],
    limits: Limits,
    confirmed: Collection[FitConfig],
    rate: float,
    noise: float,
) -> Trial | None:
    """Find the trial whose reading exceeds the confirmed rate the most; None if noise explains every reading.

    The configs in `confirmed`, which include the choice, are ignored. `noise` is the rate's relative standard deviation.
    """
    surprises: list[tuple[float, Trial]] = []
    for trial in eligible(trials, limits):
        lead = math.log(trial.samples_per_second / rate)
        explained = max(_LEAST_SURPRISE, _SURPRISE_DEVIATIONS * math.hypot(noise, trial.measurement.rate_noise))
        if trial.config not in confirmed and lead > explained:
            surprises.append((lead, trial))
    return max(surprises, key=lambda pair: pair[0])[1] if surprises else None


def passed_over(
    compared: Collection[FitConfig],
    ran: Sequence[Trial],
    limits: Limits,
    no_time: Collection[FitConfig],
) -> PassedOver | None:
    """Find the config with the highest reading, and say why it was not chosen; None if it is one of `compared`.

    `compared` is the choice and, if the baseline was kept, its challenger. `ran` are all trials of the search and all runs
    after it. `no_time` are the configs that it was too late to confirm.
    """
    finished = [trial for trial in ran if trial.measurement.outcome is Outcome.OK]
    highest = max((trial.samples_per_second for trial in finished), default=0.0)
    best = {trial.config: trial for trial in reversed(finished) if trial.samples_per_second == highest}
    if not best or not best.keys().isdisjoint(compared):
        return None
    config, reading = list(best.items())[-1]
    confirmed = {trial.config for trial in finished if trial.stage in (Stage.CHOSEN, Stage.BASELINE)}
    if not all(trial.fits(limits) for trial in ran if trial.config == config):
        decided_by = DecidedBy.FAILURE
    elif {config, *compared} <= confirmed:
        decided_by = DecidedBy.CONFIRMATION
    else:
        decided_by = DecidedBy.TIME if config in no_time else DecidedBy.READINGS
    return PassedOver(config, reading.samples_per_second, decided_by)


def eligible(trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """List the trials that may be chosen: all trials of their config fit, and no OOM rules the config out."""
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
