"""Store configs as arrays, so that a model predicts all configs of a space in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autofit.records.trial import AUTOTUNE, FitConfig

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfigArrays:
    """Holds the knobs of several configs, as arrays with one entry for each config.

    Without a queue between workers and step, `workers` is 1 and `queue` is 0. `processes` is True if the workers are
    processes. `auto_workers` and `auto_queue` are True for AUTOTUNE, which the models treat as a separate category;
    `workers` and `queue` then hold the numbers that tf.data may use. `steps` is the number of steps in a call of the train
    function; 1 if that is not searched. `epoch_samples` are the samples in an epoch, if rates include the gap before it;
    infinity for steady rates.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask
    auto_workers: Mask
    auto_queue: Mask
    steps: Vector
    epoch_samples: Vector | float = math.inf

    @classmethod
    def of(cls, configs: Sequence[FitConfig], cores: int) -> ConfigArrays:
        """Convert configs; a missing batch size counts as 1, a missing queue as 0, AUTOTUNE workers as `cores` threads."""
        return cls(
            np.array([c.batch_size or 1 for c in configs], float),
            np.array([c.worker_count(cores) for c in configs], float),
            np.array([c.queue_batches for c in configs], float),
            np.array([c.has_queue and bool(c.use_multiprocessing) for c in configs], bool),
            np.array([c.workers == AUTOTUNE for c in configs], bool),
            np.array([c.max_queue_size == AUTOTUNE for c in configs], bool),
            np.array([c.steps_per_execution or 1 for c in configs], float),
        )

    @cached_property
    def queued(self) -> Mask:
        """A mask of the configs that have a queue."""
        return (self.workers > 1) | self.processes | (self.queue > 0) | self.auto_workers

    @property
    def worker_threads(self) -> Vector:
        return np.where(self.queued & ~self.processes, self.workers, 0.0)

    @property
    def worker_processes(self) -> Vector:
        return np.where(self.processes, self.workers, 0.0)

    @cached_property
    def octaves(self) -> Vector:
        """The batch sizes in octaves."""
        return np.log2(self.batch)

    @cached_property
    def coordinates(self) -> Matrix:
        """A row of coordinates for each config.

        The columns are batch size, workers and queue size in octaves; 0 or 1 for each of worker processes, AUTOTUNE workers
        and an AUTOTUNE queue; and the number of steps in a call, in octaves.
        """
        sizes = self.octaves, np.log2(self.workers), np.log2(self.queue + 2)
        columns = *sizes, self.processes, self.auto_workers, self.auto_queue, np.log2(self.steps)
        return np.stack(columns, axis=1)

    def __len__(self) -> int:
        return len(self.batch)
