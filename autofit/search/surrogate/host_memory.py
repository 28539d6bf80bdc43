"""Predict host memory with a model that starts from the description and is fitted to trials.

    H = process + arrays + tensors + max(step on a CPU, conversion) + (q + p + t)·b·s + w·(U + c·b·s)

with q queued batches, p batches between queue and step (on JAX also those of the steps under way), t threads that each
make one batch, w worker processes, b samples per batch and s bytes per sample. "arrays" are read from files during
training. "tensors" are the copies that `fit` makes of arrays, and "conversion" is the extra memory while it makes them,
before the first step. Each forked worker holds c batches and U bytes, the pages that it writes to. AUTOTUNE counts as one
thread per core, and as a queue of `AUTOTUNE_BATCHES`.

The fitted model has the same terms. Its coefficients are the bytes of the process, the step relative to its estimate, a
held batch relative to b·s, the batches of a thread, and U and c of a worker; the constants in this module are the prior.
An OOM is a censored point: its true value is above the limit.
"""

from __future__ import annotations

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Measurement
from autofit.search.config_arrays import ConfigArrays, Matrix, Vector
from autofit.search.context import Observations, SearchContext
from autofit.search.surrogate.bayesian_linear import LinearModel, Point
from autofit.search.surrogate.device_memory import estimates

_PASSING_BATCHES = 3  # between queue and step: in training, prefetched, copied (measured: tests/trial/test_keras_facts.py)
_WORKER_BYTES = 60 * 2**20  # shared pages that a forked worker copies by writing (measured: tests/benchmarks/memory.py)
_WORKER_BATCHES = 2  # batches that a worker process holds: the one that it makes, and its pickled copy
_OF_ARRAYS = ("arrays", "tensors", "conversion")  # parts that exist only if the data is in arrays
_LOOK_AHEAD_BATCHES = 1  # Keras holds max_queue_size + 1 batches (measured: tests/trial/test_keras_facts.py)
_HOST_NOISE = 0.03  # relative noise of a host peak from run to run
_WORKER_DEVIATION_BYTES = 100 * 2.0**20  # prior deviation of a worker's bytes: it copies the shared pages it writes to
_WORKER_DEVIATION_SHARE = 0.3  # the same, as a share of the training process: at worst a worker copies all its pages
_ASSUMED_BATCHES_SHARE = 0.1  # share of the first host peak that batches take, if the sample size is unknown (assumed)
_DEFAULT_PROCESS_BYTES = 2.0**30  # bytes of the process if there is no reading (assumed)


def _queued_batches(configs: ConfigArrays) -> Vector:
    """Return the number of batches that are ready when the queue is full; 0 without a queue."""
    return np.where(configs.queued, configs.queue + _LOOK_AHEAD_BATCHES, 0.0)


def _held_batches(configs: ConfigArrays) -> Vector:
    """Return the number of finished batches that the training process holds, in the queue and between queue and step."""
    return _queued_batches(configs) + _PASSING_BATCHES


def host_bytes_by_part(description: Description, config: FitConfig, step_bytes: int, cores: int = 1) -> dict[str, int]:
    """Estimate each part of a config's host memory, in bytes.

    `step_bytes` is the peak of the train step on a CPU, without the data's tensors; 0 on an accelerator.
    """
    configs = ConfigArrays.of([config], cores)
    batch_bytes = (config.batch_size or 1) * description.sample_bytes
    queue = int(_held_batches(configs)[0] + configs.worker_threads[0] + description.steps_ahead) * batch_bytes
    parts = {
        "process": description.process_bytes,
        "arrays": description.mapped_bytes,
        "tensors": description.tensor_bytes,
        "conversion": max(0, description.conversion_bytes - step_bytes - queue),
        "step": step_bytes,
        "queue": queue,
        "worker_processes": int(configs.worker_processes[0]) * (_WORKER_BYTES + _WORKER_BATCHES * batch_bytes),
    }
    return {name: size for name, size in parts.items() if size or name not in _OF_ARRAYS}


class HostModel:
    """Predicts host memory from the description and the trials.

    `is_known` is False if neither the description nor a trial shows how large the process is.
    """

    def __init__(self, context: SearchContext, observations: Observations) -> None:
        self._context, self._observations = context, observations
        description = context.description
        read = (trial.measurement.host_peak_bytes for trial in observations.finished)
        peaks = [float(size) for size in read if size]
        always_held = description.process_bytes + description.mapped_bytes + description.tensor_bytes
        described = always_held if description.process_bytes else 0
        process = float(described or min(peaks, default=_DEFAULT_PROCESS_BYTES))
        self._sample_bytes = float(description.sample_bytes)
        if not self._sample_bytes:
            first = ConfigArrays.of([observations.finished[0].config if observations.finished else FitConfig()])
            self._sample_bytes = _ASSUMED_BATCHES_SHARE * process / float(_held_batches(first)[0] * first.batch[0])
        points = []
        for trial, noise in observations.with_noise:
            measured = trial.measurement
            features = tuple(self._features(ConfigArrays.of([trial.config], context.cores), measured)[0])
            if measured.outcome is Outcome.OK and measured.host_peak_bytes is not None:
                points.append(Point(features, float(measured.host_peak_bytes), noise=noise))
            elif measured.outcome is Outcome.HOST_OOM:
                reached = max(context.limits.host_bytes, measured.evidence.last_host_bytes or 0)
                points.append(Point(features, float(reached), at_least=True))
        worker_deviation = max(_WORKER_DEVIATION_BYTES, _WORKER_DEVIATION_SHARE * process)
        batches = float(_WORKER_BATCHES)
        prior = (  # of each coefficient: mean, standard deviation, floor
            (process, 0.3 * process, 0.5 * process),  # bytes of the process
            (1.0, 0.5, 0.0),  # the step on a CPU, relative to its estimate
            (1.0, 0.4, 0.0),  # a held batch, relative to the bytes of its samples
            (1.0, 0.6, 0.0),  # batches per thread, which holds the batch that it makes and the raw data for it
            (float(_WORKER_BYTES), worker_deviation, 0.0),  # bytes per worker process
            (batches, batches, 0.0),  # batches per worker process
        )
        means, deviations, floors = zip(*prior, strict=True)
        self._model = LinearModel(means, deviations, points, _HOST_NOISE, floors)
        self.is_known = bool(description.process_bytes or peaks)

    def predict(self, configs: ConfigArrays, deviations: float) -> tuple[Vector, Vector]:
        """Predict expected values and upper bounds in bytes; the bounds lie `deviations` standard deviations above."""
        return self._observations.bounded(self._model, self._features(configs), configs.batch, deviations)

    def _features(self, configs: ConfigArrays, measured: Measurement | None = None) -> Matrix:
        """Return a row of features for each config; sizes are in bytes.

        The columns are 1, the step on a CPU, held batches, batches of threads, the number of worker processes, and their
        batches. A measured number of queued batches is used if it is below that of a full queue.
        """
        description = self._context.description
        held, processes = _held_batches(configs) + description.steps_ahead, configs.worker_processes
        if measured is not None and measured.queued_batches is not None:
            held += np.where(configs.queued, np.minimum(0, measured.queued_batches - _queued_batches(configs)), 0.0)
        batch_bytes = configs.batch * self._sample_bytes
        step = self._step_bytes(configs.batch) if self._context.on_cpu else np.zeros(len(configs))
        step = np.maximum(step, description.conversion_bytes)  # arrays are converted before the first step
        of_threads, of_processes = configs.worker_threads * batch_bytes, processes * batch_bytes
        return np.stack([np.ones(len(configs)), step, held * batch_bytes, of_threads, processes, of_processes], axis=1)

    def _step_bytes(self, batch: Vector) -> Vector:
        """Return the bytes of the step on a CPU: the estimate, or else weights, gradients and four batches of samples."""
        description = self._context.description
        if footprints := description.footprints:
            return estimates(footprints, batch) - (footprints[0].device_bytes - footprints[0].step_bytes)
        return 2 * description.parameter_bytes + 4 * batch * self._sample_bytes
