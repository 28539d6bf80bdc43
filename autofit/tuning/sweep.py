"""Tune each cell of a matrix: one after the other, or in parallel if each has its own device and cores.

    cells ─┬─> lane (gpu:0, half of the cores) ─> tune, tune, …  ─┐
           └─> lane (gpu:1, the other half)    ─> tune, tune, …  ─┴─> Cell by Cell ─> SweepRecord

Each tune stores its result: when a killed sweep runs again, the finished cells return theirs at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from autofit.errors import (
    AutofitError,
    DeviceBusyError,
    DeviceLockedError,
    StorageError,
    TrialProcessError,
    TuneError,
    UsageError,
)
from autofit.machine.host import detect
from autofit.records.machine import Device
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

_FATAL_ERRORS = (DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError)
"""Errors that stop the whole sweep: the next cell would fail with them, too."""

_ANY_GPU = ("auto", "gpu")
_POLL_SECONDS = 0.2  # how soon Ctrl-C is noticed while cells run


@dataclass(frozen=True)
class CellRequest:
    """One cell: its values by axis, and the workload and settings of its tune."""

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings


Tune = Callable[[Workload, TuneSettings, threading.Event], TuneRecord]
"""Tunes one cell; stops when the event is set."""

CellResult = tuple[TuneRecord | FailedTune | None, str]
"""The record of a cell's tune, if there is one, and its problem."""


@dataclass(frozen=True)
class Lane:
    """A device and the CPU cores for one cell at a time."""

    device: str
    cores: tuple[int, ...]


@dataclass(frozen=True)
class CellBegins:
    """The tune of a cell begins; `lane` is None if the cell has the machine to itself."""

    index: int
    cell: Cell
    lane: Lane | None = None


@dataclass(frozen=True)
class CellEnded:
    """The tune of a cell ended; `record` is the sweep so far."""

    index: int
    cell: Cell
    record: SweepRecord


def lanes_of(
    jobs: int | None,
    gpus: Sequence[Device],
    cores: Sequence[int],
    nearby: Callable[[Device], Sequence[int]] = lambda device: (),
) -> tuple[Lane, ...]:
    """The lanes of a sweep: one per GPU, each with its own cores, up to `jobs`; none if there would be only one.

    Args:
        jobs: largest number of cells at the same time; None for one per GPU.
        gpus: the accelerators.
        cores: numbers of the CPU cores that this process may use.
        nearby: the numbers of the cores on a GPU's own NUMA node, as far as they are known.

    Raises:
        UsageError: `jobs` is larger than the number of devices.
    """
    if jobs is not None and jobs > max(1, len(gpus)):
        available = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one device"
        raise UsageError(
            f"{jobs} cells cannot be measured at the same time on {available}: they would slow each other down and falsify "
            f"the results. Write {max(1, len(gpus))} or less",
            key="jobs",
        )
    count = min(len(gpus) if jobs is None else jobs, len(cores))
    if count < 2:
        return ()
    share, free = len(cores) // count, list(cores)
    lanes = []
    for gpu in gpus[:count]:
        near = set(nearby(gpu))
        taken = sorted(free, key=lambda core: core not in near)[:share]  # stable: in order, the near ones first
        free = [core for core in free if core not in taken]
        lanes.append(Lane(f"gpu:{gpu.index}", tuple(sorted(taken))))
    return tuple(lanes)


def sweep(
    title: str, cells: Sequence[CellRequest], tune: Tune, lanes: Sequence[Lane] = ()
) -> Iterator[CellBegins | CellEnded]:
    """Tune every cell; a cell that fails or does not fit does not stop the sweep.

    Args:
        title: title of the sweep.
        cells: the cells to tune.
        tune: tunes one cell.
        lanes: devices for cells at the same time; cells that name the CPU or one GPU follow one by one.

    Raises:
        DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError: nothing can be tuned.
        KeyboardInterrupt: passed on, after all processes are ended.
    """
    running = _Sweep(title, [cell.values for cell in cells])
    parallel = [index for index, cell in enumerate(cells) if lanes and cell.settings.device in _ANY_GPU]
    yield from running.in_lanes([(index, cells[index]) for index in parallel], tune, lanes)
    for index, cell in enumerate(cells):
        if index not in parallel:
            yield running.begins(index)
            yield running.ended(index, _tuned(tune, cell.workload, cell.settings, threading.Event()))


class _Sweep:
    """The state of one sweep."""

    def __init__(self, title: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._title, self._cells = title, [Cell(dict(cell_values)) for cell_values in values]
        self._machine, self._started_at, self._started = detect(), time.time(), time.monotonic()

    def begins(self, index: int, lane: Lane | None = None) -> CellBegins:
        return CellBegins(index, self._cells[index], lane)

    def ended(self, index: int, outcome: CellResult) -> CellEnded:
        self._cells[index] = replace(self._cells[index], found=outcome[0], problem=outcome[1])
        record = SweepRecord(
            title=self._title,
            cells=tuple(self._cells),
            machine=self._machine,
            seconds=time.monotonic() - self._started,
            started_at=self._started_at,
        )
        return CellEnded(index, self._cells[index], record)

    def in_lanes(
        self, cells: Sequence[tuple[int, CellRequest]], tune: Tune, lanes: Sequence[Lane]
    ) -> Iterator[CellBegins | CellEnded]:
        """Tune cells in parallel; a free lane takes the next one."""
        waiting, free, cancelled = list(cells), list(lanes), threading.Event()
        running: dict[Future[CellResult], tuple[int, Lane]] = {}
        with ThreadPoolExecutor(max(1, len(lanes))) as pool:
            try:
                while waiting or running:
                    while waiting and free:
                        (index, cell), lane = waiting.pop(0), free.pop(0)
                        yield self.begins(index, lane)
                        settings = in_lane(cell.settings, lane, len(lanes))
                        future = pool.submit(_on_cores, lane.cores, tune, cell.workload, settings, cancelled)
                        running[future] = index, lane
                    done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        index, lane = running.pop(future)
                        free.append(lane)
                        yield self.ended(index, future.result())
            finally:
                cancelled.set()


def in_lane(settings: TuneSettings, lane: Lane, count: int) -> TuneSettings:
    """The settings of a cell that shares the host: the device of its lane, and its share of the host's memory."""
    limit = str(settings.host_memory).strip()
    share = {"host_memory": f"{float(limit[:-1]) / count:g}%"} if limit.endswith("%") else {}
    return settings.model_copy(update={**share, "device": lane.device})


def _on_cores(
    cores: Sequence[int], tune: Tune, workload: Workload, settings: TuneSettings, cancelled: threading.Event
) -> CellResult:
    """Tune on these cores: processes inherit the affinity of the thread that starts them (Linux)."""
    os.sched_setaffinity(0, cores)
    return _tuned(tune, workload, settings, cancelled)


def _tuned(tune: Tune, workload: Workload, settings: TuneSettings, cancelled: threading.Event) -> CellResult:
    try:
        return tune(workload, settings, cancelled), ""
    except _FATAL_ERRORS:
        raise
    except AutofitError as error:
        return (error.tune if isinstance(error, TuneError) else None), str(error)
