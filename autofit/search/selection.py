"""Choose among the configs that ran. This module has no side effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autofit.records.trial import FitConfig, Limits, Trial
from autofit.search.config_arrays import ConfigArrays
from autofit.search.failures import dominated_by
from autofit.search.space import cost, distance


def nearest(rates: Mapping[FitConfig, float], tolerance: float, baseline: FitConfig) -> FitConfig:
    """Return the config nearest to the baseline among those whose rate is within `tolerance` of the highest."""
    least = (1 - tolerance) * max(rates.values())
    near = (config for config, rate in rates.items() if rate >= least)
    return min(near, key=lambda config: (distance(config, baseline), cost(config)))


def eligible(trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """List the trials that may be chosen: all trials of their config fit, and no OOM rules the config out."""
    failed = {trial.config for trial in trials if not trial.fits(limits)}
    # an OOM compares AUTOTUNE with AUTOTUNE only, so the number of cores does not matter
    arrays = ConfigArrays.of([trial.config for trial in trials], cores=1)
    dominated = np.zeros(len(arrays), bool)
    for trial in trials:
        dominated |= dominated_by(arrays, ConfigArrays.of([trial.config], cores=1), trial.measurement.outcome)
    return [
        trial
        for trial, is_dominated in zip(trials, dominated, strict=True)
        if trial.measurement.samples_per_second and trial.config not in failed and not is_dominated
    ]
