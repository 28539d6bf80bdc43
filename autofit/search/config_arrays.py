"""Store configs as arrays, so that a model predicts all configs of a space in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autofit.records.trial import AUTOTUNE, FitConfig

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

DATA_COLUMNS = 6
"""The number of coordinates that describe batch size, workers and queue."""


@dataclass(frozen=True)
class ConfigArrays:
    """Holds the knobs of several configs, as arrays with one entry for each config.

    Without a queue between workers and step, `workers` is 1 and `queue` is 0. `processes` is True if the workers are
    processes. `auto_workers` and `auto_queue` are True for AUTOTUNE, which the models treat as a separate category;
    `workers` and `queue` then hold the numbers that tf.data may use. `steps` is the number of steps in a call of the train
    function; 1 if that is not searched.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask
    auto_workers: Mask
    auto_queue: Mask
    steps: Vector

    @classmethod
    def of(cls, configs: Sequence[FitConfig], cores: int = 1) -> ConfigArrays:
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

    def coordinates(self) -> Matrix:
        """Return a row of coordinates for each config.

        The first three columns are batch size, workers and queue size in octaves. The next three are 0 or 1: whether the
        workers are processes, whether the workers are AUTOTUNE, and whether the queue size is AUTOTUNE. These
        `DATA_COLUMNS` are followed by the number of steps in a call, in octaves.
        """
        sizes = np.log2(self.batch), np.log2(self.workers), np.log2(self.queue + 2)
        columns = *sizes, self.processes, self.auto_workers, self.auto_queue, np.log2(self.steps)
        return np.stack(columns, axis=1)

    def at(self, indices: Mask | npt.NDArray[np.intp] | list[int]) -> ConfigArrays:
        """Return the configs with these indices."""
        return ConfigArrays(*(getattr(self, field.name)[indices] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.batch)
