"""What a search is given: the workload, the machine, the settings, and configs as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.description import Description
from autofit.records.trial import AUTOTUNE, FitConfig, Limits, Trial
from autofit.search.space import TOLERANCE

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


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
    tolerance: float = TOLERANCE
    warm_start: tuple[Trial, ...] = ()

    def arrays(self, trials: Iterable[Trial]) -> ConfigArrays:
        """Return the configs of trials as arrays."""
        return ConfigArrays([trial.config for trial in trials], self.cores)


class ConfigArrays:
    """The knobs of several configs, as arrays with one entry for each, so that a model predicts a whole space in one pass.

    Without a queue between workers and step, `workers` is 1 and `queue` is 0. `processes` is True if the workers are
    processes. `auto_workers` and `auto_queue` are True for AUTOTUNE, which the models treat as a separate category;
    `workers` and `queue` then hold the numbers that tf.data may use. `steps` is the number of steps in a call of the train
    function; 1 if that is not searched. `epoch_samples` are the samples in an epoch, if rates include the gap before it;
    infinity for steady rates. `coordinates` has a row for each config: sizes and steps in octaves, and masks as 0 or 1.
    """

    def __init__(
        self, configs: Sequence[FitConfig], cores: int, epoch_samples: Vector | float = math.inf
    ) -> None:
        self.epoch_samples = epoch_samples
        self.batch: Vector = np.array([c.batch_size or 1 for c in configs], float)
        self.workers: Vector = np.array([c.worker_count(cores) for c in configs], float)
        self.queue: Vector = np.array([c.queue_batches for c in configs], float)
        self.processes: Mask = np.array(
            [c.has_queue and bool(c.use_multiprocessing) for c in configs], bool
        )
        self.auto_workers: Mask = np.array([c.workers == AUTOTUNE for c in configs], bool)
        self.auto_queue: Mask = np.array([c.max_queue_size == AUTOTUNE for c in configs], bool)
        self.steps: Vector = np.array([c.steps_per_execution or 1 for c in configs], float)
        self.queued: Mask = (
            (self.workers > 1) | self.processes | (self.queue > 0) | self.auto_workers
        )
        self.worker_threads: Vector = np.where(self.queued & ~self.processes, self.workers, 0.0)
        self.worker_processes: Vector = np.where(self.processes, self.workers, 0.0)
        self.octaves: Vector = np.log2(self.batch)
        sizes = self.octaves, np.log2(self.workers), np.log2(self.queue + 2)
        masks = self.processes, self.auto_workers, self.auto_queue
        self.coordinates: Matrix = np.stack([*sizes, *masks, np.log2(self.steps)], axis=1)

    def __len__(self) -> int:
        return len(self.batch)
