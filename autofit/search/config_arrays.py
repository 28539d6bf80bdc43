"""Many configs as arrays, so that a surrogate predicts a whole search space at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.trial import FitConfig

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfigArrays:
    """Configs as arrays, an entry for each config.

    `workers` is 1 and `queue` 0 where Keras puts no queue between workers and step; `processes` is True where the workers
    are processes.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask

    @classmethod
    def of(cls, configs: Sequence[FitConfig]) -> ConfigArrays:
        """The arrays of configs; a batch size of None counts as 1, a queue size of None as 0."""
        return cls(
            np.array([c.batch_size or 1 for c in configs], float),
            np.array([(c.workers or 1) if c.has_queue else 1 for c in configs], float),
            np.array([(c.max_queue_size or 0) if c.has_queue else 0 for c in configs], float),
            np.array([c.has_queue and bool(c.use_multiprocessing) for c in configs], bool),
        )

    @property
    def queued(self) -> Mask:
        """Which configs have a queue."""
        return (self.workers > 1) | self.processes | (self.queue > 0)

    def __len__(self) -> int:
        return len(self.batch)
