"""Many configs as arrays, so that a surrogate predicts a whole search space at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.trial import AUTOTUNE, FitConfig

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfigArrays:
    """Configs as arrays, an entry for each config.

    `workers` is 1 and `queue` 0 where Keras puts no queue between workers and step; `processes` is True where the workers
    are processes. `auto_workers` and `auto_queue` are True for AUTOTUNE: a category of its own, whose numbers in `workers`
    and `queue` are what it may take.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask
    auto_workers: Mask
    auto_queue: Mask

    @classmethod
    def of(cls, configs: Sequence[FitConfig], cores: int = 1) -> ConfigArrays:
        """The arrays of configs; a batch size of None counts as 1, a queue size of None as 0.

        Args:
            configs: the configs.
            cores: CPU cores: the threads that AUTOTUNE counts as.
        """
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
        """Which configs have a queue."""
        return (self.workers > 1) | self.processes | (self.queue > 0) | self.auto_workers

    def __len__(self) -> int:
        return len(self.batch)
