"""A tune for each cell of a matrix: one after the other, or side by side where each has a device and cores of its own.

    cells ─┬─> lane (gpu:0, half of the cores) ─> tune, tune, …  ─┐
           └─> lane (gpu:1, the other half)    ─> tune, tune, …  ─┴─> Cell by Cell ─> SweepRecord

Each tune stores its result: the cells of a sweep that was killed are asked again, and those with a result have it at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from autofit.errors import AutofitError, DeviceBusyError, StorageError, TrialProcessError, TuneError, UsageError
from autofit.machine.host import detect
from autofit.records.machine import Device
from autofit.records.result import Cell, FailedTune, SweepRecord, TuneRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

_FATAL_ERRORS = (DeviceBusyError, StorageError, TrialProcessError)
"""Errors that stop the whole sweep: the next cell would have them, too."""

_ANY_GPU = ("auto", "gpu")
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class CellRequest:
    """One cell: its values by axis, and the tune that they describe."""

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings


Tune = Callable[[Workload, TuneSettings, threading.Event], TuneRecord]
"""Tunes one cell, until the event cancels it."""

Outcome = tuple[TuneRecord | FailedTune | None, str]
"""The record of a cell's tune, if there is one, and what was wrong."""


@dataclass(frozen=True)
class Lane:
    """Where one cell is tuned at a time: a device, and the CPU cores that its processes may use."""

    device: str
    cores: tuple[int, ...]


@dataclass(frozen=True)
class CellBegins:
    """The tune of a cell begins; `lane` is None where it has the machine to itself."""

    index: int
    cell: Cell
    lane: Lane | None = None


@dataclass(frozen=True)
class CellEnded:
    """The tune of a cell ended; `record` is the sweep so far."""

    index: int
    cell: Cell
    record: SweepRecord


def lanes_of(jobs: int | None, gpus: Sequence[Device], cores: Sequence[int]) -> tuple[Lane, ...]:
    """The lanes of a sweep: one per GPU with cores of its own, up to `jobs`; none where there would be only one.

    Args:
        jobs: most cells at the same time; None for one per GPU.
        gpus: the accelerators.
        cores: numbers of the CPU cores that this process may use.

    Raises:
        UsageError: more are asked for than there are devices.
    """
    if jobs is not None and jobs > max(1, len(gpus)):
        available = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one device"
        raise UsageError(
            f"{jobs} cells cannot be measured at the same time on {available}: they would slow each other down, and "
            f"every figure would be wrong; {max(1, len(gpus))} is the most here",
            key="jobs",
        )
    count = min(len(gpus) if jobs is None else jobs, len(cores))
    if count < 2:
        return ()
    share = len(cores) // count
    return tuple(
        Lane(f"gpu:{gpu.index}", tuple(cores[index * share : (index + 1) * share]))
        for index, gpu in enumerate(gpus[:count])
    )


def sweep(
    title: str, cells: Sequence[CellRequest], tune: Tune, lanes: Sequence[Lane] = ()
) -> Iterator[CellBegins | CellEnded]:
    """Tune every cell; one that fails or does not fit is a row like any other.

    Args:
        title: of the sweep.
        cells: what to tune.
        tune: tunes one.
        lanes: where cells may be tuned at the same time; cells that ask for the CPU or one GPU follow, one by one.

    Raises:
        DeviceBusyError, StorageError, TrialProcessError: nothing can be tuned.
        KeyboardInterrupt: passed on, after all processes are ended.
    """
    running = _Sweep(title, [cell.values for cell in cells])
    parallel = [n for n, cell in enumerate(cells) if lanes and cell.settings.device in _ANY_GPU]
    yield from running.in_lanes([(n, cells[n]) for n in parallel], tune, lanes)
    for index, cell in enumerate(cells):
        if index not in parallel:
            yield running.begins(index)
            yield running.ended(index, _tuned(tune, cell.workload, cell.settings, threading.Event()))


class _Sweep:
    """The cells of one sweep so far."""

    def __init__(self, title: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._title, self._cells = title, [Cell(dict(v)) for v in values]
        self._machine, self._started_at, self._started = detect(), time.time(), time.monotonic()

    def begins(self, index: int, lane: Lane | None = None) -> CellBegins:
        return CellBegins(index, self._cells[index], lane)

    def ended(self, index: int, outcome: Outcome) -> CellEnded:
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
        """Tune cells side by side; a lane that is free takes the next one."""
        waiting, free, cancelled = list(cells), list(lanes), threading.Event()
        running: dict[Future[Outcome], tuple[int, Lane]] = {}
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
    """The settings of a cell that shares the host with others: its lane's device, and its share of the host's memory."""
    host = str(settings.host_memory).strip()
    share = {"host_memory": f"{float(host[:-1]) / count:g}%"} if host.endswith("%") else {}
    return settings.model_copy(update={**share, "device": lane.device})


def _on_cores(
    cores: Sequence[int], tune: Tune, workload: Workload, settings: TuneSettings, cancelled: threading.Event
) -> Outcome:
    """Tune on these cores: a thread's affinity is that of the processes it starts (Linux)."""
    os.sched_setaffinity(0, cores)
    return _tuned(tune, workload, settings, cancelled)


def _tuned(tune: Tune, workload: Workload, settings: TuneSettings, cancelled: threading.Event) -> Outcome:
    try:
        return tune(workload, settings, cancelled), ""
    except _FATAL_ERRORS:
        raise
    except AutofitError as error:
        return (error.tune if isinstance(error, TuneError) else None), str(error)
