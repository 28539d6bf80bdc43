"""Store configs as arrays, so that a model predicts all configs of a space in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.trial import AUTOTUNE, FitConfig

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_PROCESS_OCTAVES = 4.0  # distance between threads and processes
_AUTO_OCTAVES = 1.0  # distance between a number and AUTOTUNE; for the queue it is multiplied by _QUEUE_WEIGHT
_QUEUE_WEIGHT = 0.3  # weight of an octave of queue size, relative to an octave of batch size or workers


@dataclass(frozen=True)
class ConfigArrays:
    """Holds the knobs of several configs, as arrays with one entry for each config.

    Without a queue between workers and step, `workers` is 1 and `queue` is 0. `processes` is True if the workers are
    processes. `auto_workers` and `auto_queue` are True for AUTOTUNE, which the models treat as a separate category;
    `workers` and `queue` then hold the numbers that tf.data may use.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask
    auto_workers: Mask
    auto_queue: Mask

    @classmethod
    def of(cls, configs: Sequence[FitConfig], cores: int = 1) -> ConfigArrays:
        """Convert configs; no batch size counts as 1, no queue size as 0, and AUTOTUNE workers as `cores` threads."""
        return cls(
            np.array([c.batch_size or 1 for c in configs], float),
            np.array([c.worker_count(cores) for c in configs], float),
            np.array([c.queue_batches for c in configs], float),
            np.array([c.has_queue and bool(c.use_multiprocessing) for c in configs], bool),
            np.array([c.workers == AUTOTUNE for c in configs], bool),
            np.array([c.max_queue_size == AUTOTUNE for c in configs], bool),
        )

    @property
    def queued(self) -> Mask:
        """A mask of the configs that have a queue."""
        return (self.workers > 1) | self.processes | (self.queue > 0) | self.auto_workers

    @property
    def worker_threads(self) -> Vector:
        return np.where(self.queued & ~self.processes, self.workers, 0.0)

    @property
    def worker_processes(self) -> Vector:
        return np.where(self.processes, self.workers, 0.0)

    def log_points(self) -> Matrix:
        """Return coordinates in octaves, one row for each config.

        The columns are batch size, workers, queue size, threads or processes, AUTOTUNE of the workers and of the queue.
        """
        kind = _PROCESS_OCTAVES * self.processes
        queue = _QUEUE_WEIGHT * np.log2(self.queue + 2)
        automatic = _AUTO_OCTAVES * self.auto_workers, _QUEUE_WEIGHT * _AUTO_OCTAVES * self.auto_queue
        return np.stack([np.log2(self.batch), np.log2(self.workers), queue, kind, *automatic], axis=1)

    def __len__(self) -> int:
        return len(self.batch)
