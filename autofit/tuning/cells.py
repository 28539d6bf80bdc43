"""Tune the cells of a sweep, and collect their results: requests ─> Executor ─> Cell by Cell ─> SweepRecord.

Each tune stores its result: when a killed sweep runs again, the finished cells return theirs at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from autofit.machine.host import detect
from autofit.records.sweep import Cell, SweepRecord
from autofit.tuning.executors.executor import CellRequest, Executor

_POLL_SECONDS = 0.2  # between checks whether the sweep was closed


@dataclass(frozen=True)
class CellProgress:
    """What the tune of a cell is doing, and where; `doing` is empty when it begins, `where` if that is this machine."""

    index: int
    where: str
    doing: str
    is_shown: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)


@dataclass(frozen=True)
class CellEnded:
    """The tune of a cell ended; `record` is the sweep so far."""

    index: int
    cell: Cell
    record: SweepRecord


def tune_cells(title: str, requests: Sequence[CellRequest], executor: Executor) -> Iterator[CellProgress | CellEnded]:
    """Tune every cell, then close the executor; a cell that fails or does not fit does not stop the sweep."""
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
