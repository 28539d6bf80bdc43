"""The inputs of a search and its models: the context, which is fixed, and the trials that have run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Trial
from autofit.search.config_arrays import Matrix, Vector
from autofit.search.surrogate.bayesian_linear import LinearModel

_ERROR_PER_OCTAVE = 0.02  # relative error of a linear model, for each doubling beyond the largest batch size that ran
_WARM_START_NOISE = 3.0  # multiplies the noise of an earlier tune's trial: other limits or versions change a peak little


@dataclass(frozen=True)
class SearchContext:
    """The workload, the machine and the settings of one search, made once and shared by all its models.

    `FrontierSampler` explains the settings. AUTOTUNE counts as one thread for each of the `cores`. If `on_cpu`, the train
    step takes host memory and cores.
    """

    description: Description
    limits: Limits
    cores: int
    on_cpu: bool
    tolerance: float = 0.02
    headroom: float = 0.03
    max_oom: int = 2
    warm_start: tuple[Trial, ...] = ()


class Observations:
    """The trials of this tune, and those of an earlier tune of the same workload under other limits or versions.

    `with_noise` pairs each trial with its noise: a factor that is 1 for the trials of this tune. `finished` are the trials
    that finished.
    """

    def __init__(self, trials: Sequence[Trial], warm_start: Sequence[Trial]) -> None:
        self.with_noise = [*((trial, 1.0) for trial in trials), *((trial, _WARM_START_NOISE) for trial in warm_start)]
        self.finished = [trial for trial, _ in self.with_noise if trial.measurement.outcome is Outcome.OK]

    def bounded(
        self, model: LinearModel, features: Matrix, batch: Vector, deviations: float, jump: float = 0.0
    ) -> tuple[Vector, Vector]:
        """Predict expected values, and upper bounds that lie `deviations` standard deviations above them.

        The standard deviations grow for batch sizes beyond the largest one that finished. `jump` is a further relative
        standard deviation of these.
        """
        expected, deviation = model.predict(features)
        largest = max((trial.config.batch_size or 1 for trial in self.finished), default=math.inf)
        octaves = np.log2(np.maximum(1.0, batch / largest))
        beyond = np.hypot(_ERROR_PER_OCTAVE * octaves, jump * (octaves > 0)) * expected
        return expected, expected + deviations * np.hypot(deviation, beyond)
