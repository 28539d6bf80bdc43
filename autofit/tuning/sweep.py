"""Tune each cell of a matrix in an executor, and collect the results: cells ─> `Executor` ─> Cell by Cell ─> SweepRecord.

Each tune stores its result: when a killed sweep runs again, the finished cells return theirs at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from autofit.machine.host import detect
from autofit.records.sweep import Cell, SweepRecord
from autofit.tuning.executors.executor import CellRequest, CellResult, Executor

_POLL_SECONDS = 0.2  # how soon Ctrl-C is noticed while cells run


@dataclass(frozen=True)
class CellReport:
    """What the tune of a cell is doing, and where; `doing` is empty when it begins, `where` if that is this machine."""

    index: int
    cell: Cell
    where: str
    doing: str


@dataclass(frozen=True)
class CellEnded:
    """The tune of a cell ended; `record` is the sweep so far."""

    index: int
    cell: Cell
    record: SweepRecord


def sweep(title: str, cells: Sequence[CellRequest], executor: Executor) -> Iterator[CellReport | CellEnded]:
    """Tune every cell; a cell that fails or does not fit does not stop the sweep.

    Args:
        title: title of the sweep.
        cells: the cells to tune.
        executor: where; closed at the end.

    Raises:
        AutofitError: nothing can be tuned there.
        KeyboardInterrupt: passed on, after all processes are ended.
    """
    running, handover = _Sweep(title, [cell.values for cell in cells]), _Handover()
    try:
        for index, future in enumerate(executor.start(cells, handover.report)):
            handover.await_end(index, future)
        ended = 0
        while ended < len(cells):
            for item in handover.items():
                if isinstance(item, _Reported):
                    yield CellReport(item.index, running.cells[item.index], item.where, item.doing)
                    item.shown.set()
                else:
                    ended += 1
                    yield running.ended(*item)
    finally:
        handover.is_closed = True
        executor.close()


@dataclass(frozen=True)
class _Reported:
    """What an executor reports; `shown` is set when the sweep's caller has had it."""

    index: int
    where: str
    doing: str
    shown: threading.Event


class _Handover:
    """Takes what the threads of an executor report to the thread of the sweep, in the order in which it happens."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Reported | tuple[int, Future[CellResult]]] = queue.SimpleQueue()
        self.is_closed = False

    def report(self, index: int, where: str, doing: str) -> None:
        item = _Reported(index, where, doing, threading.Event())
        self._items.put(item)
        while not item.shown.wait(_POLL_SECONDS) and not self.is_closed:
            pass

    def await_end(self, index: int, future: Future[CellResult]) -> None:
        future.add_done_callback(lambda done: self._items.put((index, done)))

    def items(self) -> Iterator[_Reported | tuple[int, CellResult]]:
        """What is there now, or comes in a moment.

        Raises:
            AutofitError: a future raised it.
        """
        try:
            item = self._items.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return
        yield item if isinstance(item, _Reported) else (item[0], item[1].result())


class _Sweep:
    """The state of one sweep."""

    def __init__(self, title: str, values: Sequence[Mapping[str, Any]]) -> None:
        self.cells = [Cell(dict(cell_values)) for cell_values in values]
        self._title, self._machine, self._started_at, self._started = title, detect(), time.time(), time.monotonic()

    def ended(self, index: int, result: CellResult) -> CellEnded:
        """Take over the result of a cell."""
        self.cells[index] = replace(
            self.cells[index], tune=result.tune, problem=result.problem, host=result.host, note=result.note
        )
        record = SweepRecord(
            title=self._title,
            cells=tuple(self.cells),
            machine=self._machine,
            seconds=time.monotonic() - self._started,
            started_at=self._started_at,
        )
        return CellEnded(index, self.cells[index], record)
