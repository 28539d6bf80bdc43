"""Many configs as columns of numbers, so that a whole search space is predicted at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.trial import FitConfig

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfigArrays:
    """Configs as columns, all of one length.

    `workers` is 1 and `queue` 0 where Keras puts no queue between workers and step; `processes` says where the workers are
    processes.
    """

    batch: Vector
    workers: Vector
    queue: Vector
    processes: Mask

    @classmethod
    def of(cls, configs: Sequence[FitConfig]) -> ConfigArrays:
        """The columns of configs; a batch that is None counts as one sample, a queue that is None as none."""
        return cls(
            np.array([c.batch_size or 1 for c in configs], float),
            np.array([(c.workers or 1) if c.has_queue else 1 for c in configs], float),
            np.array([(c.max_queue_size or 0) if c.has_queue else 0 for c in configs], float),
            np.array([c.has_queue and bool(c.use_multiprocessing) for c in configs], bool),
        )

    @property
    def queued(self) -> Mask:
        """Where there is a queue."""
        return (self.workers > 1) | self.processes | (self.queue > 0)

    def __len__(self) -> int:
        return len(self.batch)
