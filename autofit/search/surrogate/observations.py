"""The trials that the memory models are fitted to, and the error of predictions beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search.config_arrays import Matrix, Vector
from autofit.search.surrogate.bayesian_linear import LinearModel

_ERROR_PER_OCTAVE = 0.02  # relative error of the linear form, for each doubling beyond the largest batch that ran
_WARM_START_NOISE = 3.0  # factor on the noise of an earlier tune's trial: other limits or versions change a peak little


@dataclass(frozen=True)
class Observations:
    """Trials of this tune, and finished ones of an earlier tune of the workload under other limits or versions."""

    trials: Sequence[Trial]
    warm_start: Sequence[Trial]

    @property
    def with_noise(self) -> list[tuple[Trial, float]]:
        """Each trial with its noise relative to a trial of this tune."""
        return [(trial, 1.0) for trial in self.trials] + [(trial, _WARM_START_NOISE) for trial in self.warm_start]

    @cached_property
    def finished(self) -> list[Trial]:
        """The trials that finished."""
        return [trial for trial, _ in self.with_noise if trial.measurement.outcome is Outcome.OK]

    @cached_property
    def largest_batch(self) -> int | None:
        """The largest batch that finished, samples."""
        return max((trial.config.batch_size or 1 for trial in self.finished), default=None)

    def bounded(self, model: LinearModel, features: Matrix, batch: Vector, deviations: float) -> tuple[Vector, Vector]:
        """Predict expected values, and upper bounds `deviations` above, which widen beyond the largest finished batch."""
        expected, deviation = model.predict(features)
        octaves = np.maximum(0.0, np.log2(batch / self.largest_batch)) if self.largest_batch else 0.0
        return expected, expected + deviations * np.hypot(deviation, _ERROR_PER_OCTAVE * octaves * expected)
