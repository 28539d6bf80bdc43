"""What a search is given: the workload, the machine, the settings, and configs as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.description import Description
from autofit.records.knobs import (
    AUTOTUNE,
    KNOBS,
    STEPS_PER_EXECUTION,
    Coordinate,
    FitConfig,
)
from autofit.records.trial import Limits, Trial
from autofit.search.space import TOLERANCE

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class SearchContext:
    """The workload, the machine and the settings of one search, which all its models share.

    `FrontierSampler` explains the settings. AUTOTUNE counts as one thread for each of the `cores`.
    If `on_cpu`, the train step takes host memory and cores.
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
    """The knobs of several configs, as arrays with one entry for each.

    A model predicts a whole space in one pass. Without a queue between workers and step, `workers`
    is 1 and `queue` is 0. `processes` is True if the workers are processes. `auto_workers` and
    `auto_queue` are True for AUTOTUNE, which the models treat as a separate category; `workers` and
    `queue` then hold the numbers that tf.data may use. `steps` is the number of steps in a call of
    the train function; 1 if that is not searched. `epoch_samples` are the samples in an epoch, if
    rates include the gap before it; infinity for steady rates. `coordinates` has a row for each
    config and a column for each `Coordinate`, in octaves; `weights` and `lengths` are those of the
    columns.
    """

    def __init__(
        self,
        configs: Sequence[FitConfig],
        cores: int,
        epoch_samples: Vector | float = math.inf,
    ) -> None:
        coordinates = _coordinates()
        sizes = {
            name: np.array([one.size(config, cores) for config in configs], float)
            for name, one in coordinates.items()
        }
        self.coordinates = np.stack([np.log2(size) for size in sizes.values()], axis=1)
        self.weights = np.array([one.weight for one in coordinates.values()])
        self.lengths = np.array([one.length for one in coordinates.values()])
        self.batch = sizes["batch_size"]
        self.octaves = np.log2(self.batch)
        self.workers = sizes["workers"]
        self.queue = np.array([config.queue_batches for config in configs], float)
        self.steps = sizes[STEPS_PER_EXECUTION]
        self.processes = sizes["use_multiprocessing"] > 1
        self.auto_workers = sizes["workers=AUTOTUNE"] > 1
        self.auto_queue = sizes["max_queue_size=AUTOTUNE"] > 1
        self.queued = (
            (self.workers > 1) | self.processes | (self.queue > 0) | self.auto_workers
        )
        self.worker_threads = np.where(self.queued & ~self.processes, self.workers, 0.0)
        self.worker_processes = np.where(self.processes, self.workers, 0.0)
        self.epoch_samples = epoch_samples

    def __len__(self) -> int:
        return len(self.batch)


def _coordinates() -> dict[str, Coordinate]:
    """Return the coordinates of all knobs, in the order of the columns of `ConfigArrays`."""
    # AUTOTUNE stands between the knobs of the data and those of the model: the last digits of a sum
    # over the columns depend on their order.
    of_data = dict[str, Coordinate]()
    of_autotune = dict[str, Coordinate]()
    of_model = dict[str, Coordinate]()
    for knob, row in KNOBS.items():
        if row.coordinate is None:
            continue
        (of_data if row.parameters else of_model)[knob] = row.coordinate
        if row.autotunes:
            of_autotune[f"{knob}=AUTOTUNE"] = _of_autotune(knob, row.coordinate.weight)
    return {**of_data, **of_autotune, **of_model}


def _of_autotune(knob: str, weight: float) -> Coordinate:
    """Return the coordinate in which AUTOTUNE is one octave from every number."""

    def size(config: FitConfig, cores: int) -> int:
        return 2 if getattr(config, knob) == AUTOTUNE else 1

    return Coordinate(size, weight, length=1.0)
