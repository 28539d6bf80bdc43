"""Tune the cells of a sweep: the interface of an executor, and the loop that collects the results of the cells.

    CellRequests ──> tune_cells ──> Executor ──> tuned, for each cell
                         └──> CellProgress, CellEnded with the SweepRecord so far

Each tune stores its result. When a sweep that was killed runs again, its finished cells return their results at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from autofit.errors import AutofitError, DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError, TuneError
from autofit.machine.host import detect
from autofit.records.result import TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

_POLL_SECONDS = 0.2  # time between checks whether the sweep was closed

HOST_ERRORS = (DeviceBusyError, DeviceLockedError, StorageError, TrialProcessError)
"""Errors of a host rather than of a cell: every other cell would fail on that host as well."""


@dataclass(frozen=True)
class CellRequest:
    """A cell to tune: its values by axis, and the workload and settings of its tune.

    If `fresh` is true, its stored trials are deleted first. `host_labels` are the labels that a host of a cluster must have
    to tune the cell.
    """

    values: Mapping[str, Any]
    workload: Workload
    settings: TuneSettings
    fresh: bool = False
    host_labels: Mapping[str, str] = field(default_factory=dict)


Tell = Callable[[str], None]
"""Receives a line that says what a tune is doing."""

Tune = Callable[[CellRequest, Tell, threading.Event], TuneRecord]
"""Tunes one cell; stops when the event is set."""

Report = Callable[[int, str, str], None]
"""Receives the index of a cell, the host or device that tunes it, and what its tune is doing; returns once it is shown."""


class Executor(Protocol):
    """Tunes the cells of a sweep."""

    def start(self, requests: Sequence[CellRequest], report: Report) -> Sequence[Future[Cell]]:
        """Start to tune the cells, as many at a time as can run without disturbing each other.

        Args:
            requests: the cells, in the order in which they should start.
            report: call this from any thread when the tune of a cell starts, and whenever its activity changes.

        Returns:
            A future for each cell, in the order of `requests`. A future that raises ends the sweep.
        """

    def close(self) -> None:
        """End the tunes that are still running, with all their processes, and wait for that."""


def tuned(tune: Tune, request: CellRequest, tell: Tell, cancelled: threading.Event) -> Cell:
    """Tune a cell. An error is stored as the `problem` of the cell; only `HOST_ERRORS` are raised."""
    try:
        record = tune(request, tell, cancelled)
    except AutofitError as error:
        if isinstance(error, HOST_ERRORS):
            raise
        failed = error.tune if isinstance(error, TuneError) else None
        return Cell(request.values, failed, str(error), failed.machine.host if failed else "")
    return Cell(request.values, record, host=record.machine.host)


@dataclass(frozen=True)
class CellProgress:
    """What the tune of a cell is doing, and on which host or device.

    `doing` is empty when the tune starts. `where` is empty if the tune has neither a host nor a device to name.
    """

    index: int
    where: str
    doing: str
    is_shown: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)


@dataclass(frozen=True)
class CellEnded:
    """The tune of a cell has ended; `record` is the record of the sweep so far."""

    index: int
    cell: Cell
    record: SweepRecord


def tune_cells(title: str, requests: Sequence[CellRequest], executor: Executor) -> Iterator[CellProgress | CellEnded]:
    """Tune every cell, then close the executor; a cell that fails, or in which nothing fits, does not stop the sweep."""
    machine, started_at, started = detect(), time.time(), time.monotonic()
    cells = [Cell(dict(request.values)) for request in requests]
    events: queue.SimpleQueue[CellProgress | tuple[int, Future[Cell]]] = queue.SimpleQueue()
    is_closed = threading.Event()

    def report(index: int, where: str, doing: str) -> None:
        progress = CellProgress(index, where, doing)
        events.put(progress)
        while not progress.is_shown.wait(_POLL_SECONDS) and not is_closed.is_set():
            pass

    try:
        for index, future in enumerate(executor.start(requests, report)):
            future.add_done_callback(partial(lambda index, done: events.put((index, done)), index))
        waiting = len(requests)
        while waiting:
            event = events.get()
            if isinstance(event, CellProgress):
                yield event
                event.is_shown.set()
                continue
            waiting -= 1
            index, done = event
            cells[index] = done.result()
            seconds = time.monotonic() - started
            record = SweepRecord(title=title, cells=tuple(cells), machine=machine, seconds=seconds, started_at=started_at)
            yield CellEnded(index, cells[index], record)
    finally:
        is_closed.set()
        executor.close()
