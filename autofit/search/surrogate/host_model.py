"""Host memory fitted to trials: ΣPSS = process + step + n·b·s·c + t·b·s·m + w·(U + a·b·s), the terms of `host_memory`.

The bytes of a queued batch (c), a thread (m) and a worker process (U, a) are fitted, starting from the constants there. An
OOM is a censored point: the true value is above the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.search.config_arrays import ConfigArrays, Matrix, Vector
from autofit.search.surrogate import host_memory
from autofit.search.surrogate.bayesian_linear import LinearModel, Point
from autofit.search.surrogate.device_estimate import estimates
from autofit.search.surrogate.observations import Observations

_HOST_NOISE = 0.03  # relative, of a host peak from run to run
_WORKER_DEVIATION_BYTES = 100 * 2.0**20  # prior, of a worker process: it copies the shared pages that Python writes to ...
_WORKER_DEVIATION_SHARE = 0.3  # ... in the worst case all pages of the process it is forked from: a share of that
_ASSUMED_BATCHES_SHARE = 0.1  # share of the first host peak assumed to be batches where the sample size is unknown
_DEFAULT_PROCESS_BYTES = 2.0**30  # assumed where nothing has been read


class HostModel:
    """Predicts host memory; `is_known` is False where no reading says how large the process is.

    Args:
        description: of the workload, with its footprints.
        limit_bytes: under which the trials ran.
        observations: the trials.
        on_cpu: whether the train step itself takes host memory.
        cores: CPU cores, for AUTOTUNE.
    """

    def __init__(
        self, description: Description, limit_bytes: int, observations: Observations, *, on_cpu: bool, cores: int
    ) -> None:
        self._description, self._observations, self._on_cpu = description, observations, on_cpu
        read = (trial.measurement.host_peak_bytes for trial in observations.finished)
        peaks = [float(size) for size in read if size]
        described = host_memory.held_bytes(description) if description.process_bytes else 0
        process = float(described or min(peaks, default=_DEFAULT_PROCESS_BYTES))
        self._sample_bytes = float(description.sample_bytes) or _assumed_sample_bytes(process, observations.finished)
        points = []
        for trial, noise in observations.with_noise:
            measured = trial.measurement
            features = tuple(self._features(ConfigArrays.of([trial.config], cores), measured)[0])
            if measured.outcome is Outcome.OK and measured.host_peak_bytes is not None:
                points.append(Point(features, float(measured.host_peak_bytes), noise=noise))
            elif measured.outcome is Outcome.HOST_OOM:
                reached = max(limit_bytes, measured.evidence.last_host_bytes or 0)
                points.append(Point(features, float(reached), at_least=True))
        worker_deviation = max(_WORKER_DEVIATION_BYTES, _WORKER_DEVIATION_SHARE * process)
        batches = float(host_memory.WORKER_BATCHES)
        prior = (  # of each coefficient: mean, standard deviation, floor
            (process, 0.3 * process, 0.5 * process),  # bytes of the process
            (1.0, 0.5, 0.0),  # the step on a CPU, relative to its estimate
            (1.0, 0.4, 0.0),  # a held batch, relative to the bytes of its samples
            (1.0, 0.6, 0.0),  # batches a thread: it holds the one that it makes, and what that is made of
            (float(host_memory.WORKER_BYTES), worker_deviation, 0.0),  # bytes a worker process
            (batches, batches, 0.0),  # batches a worker process
        )
        means, deviations, floors = zip(*prior, strict=True)
        self._model = LinearModel(means, deviations, points, _HOST_NOISE, floors)
        self.is_known = bool(description.process_bytes or peaks)

    def predict(self, configs: ConfigArrays, deviations: float) -> tuple[Vector, Vector]:
        """Expected bytes, and upper bounds so many standard deviations above."""
        return self._observations.bounded(self._model, self._features(configs), configs.batch, deviations)

    def _features(self, configs: ConfigArrays, measured: Measurement | None = None) -> Matrix:
        """(1, step on a CPU, batches held, those that threads make, worker processes, batches they hold), in bytes.

        A trial that read how full its queue was counts the batches that it read.
        """
        held, processes = host_memory.held_batches(configs), host_memory.worker_processes(configs)
        if measured is not None and measured.queued_batches is not None:
            held = held + np.where(
                configs.queued, np.minimum(0, measured.queued_batches - host_memory.queued_batches(configs)), 0.0
            )
        held = held + self._description.steps_ahead
        batch_bytes = configs.batch * self._sample_bytes
        step = self._step_bytes(configs.batch) if self._on_cpu else np.zeros(len(configs))
        step = np.maximum(step, self._description.conversion_bytes)  # arrays are converted before the first step
        of_threads, of_processes = host_memory.worker_threads(configs) * batch_bytes, processes * batch_bytes
        return np.stack([np.ones(len(configs)), step, held * batch_bytes, of_threads, processes, of_processes], axis=1)

    def _step_bytes(self, batch: Vector) -> Vector:
        """Bytes of the train step on a CPU: the estimate, or weights, gradients and a few batches."""
        if footprints := self._description.footprints:
            return estimates(footprints, batch) - (footprints[0].device_bytes - footprints[0].step_bytes)
        return 2 * self._description.parameter_bytes + 4 * batch * self._sample_bytes


def _assumed_sample_bytes(process_bytes: float, finished: Sequence[Trial]) -> float:
    """Bytes a sample where the description gives none, from the batches that the first finished trial held."""
    configs = ConfigArrays.of([finished[0].config if finished else FitConfig()])
    return _ASSUMED_BATCHES_SHARE * process_bytes / float(host_memory.held_batches(configs)[0] * configs.batch[0])
