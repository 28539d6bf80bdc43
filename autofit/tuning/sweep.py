"""A tune for each cell of a matrix: one after the other, or side by side where each has a device and cores of its own.

    cells ─┬─> lane (gpu:0, half of the cores) ─> tune, tune, …  ─┐
           └─> lane (gpu:1, the other half)    ─> tune, tune, …  ─┴─> Cell by Cell ─> SweepRecord

What was found is kept by each tune itself (`answer`): a sweep that was killed asks every cell again, and those that were
answered answer at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from autofit.errors import AutofitError, DeviceBusyError, StorageError, TrialProcessError, UsageError
from autofit.machine.host import detect
from autofit.records.machine import Device
from autofit.records.result import Cell, FailedTune, SweepRecord, TuneRecord

_ENDS_ALL = (DeviceBusyError, StorageError, TrialProcessError)  # no cell's own fault, and so the next one's, too
_FREE_CHOICES = ("auto", "gpu")
_POLL_SECONDS = 0.2

Arguments = Mapping[str, Any]
Tune = Callable[[Arguments, threading.Event], TuneRecord]


@dataclass(frozen=True)
class Lane:
    """Where one cell is tuned at a time: a device, and the CPU cores that its processes may use."""

    device: str
    cores: tuple[int, ...]


@dataclass(frozen=True)
class CellEnded:
    """A cell has come to its end; `record` is the sweep as it stands now."""

    index: int
    cell: Cell
    record: SweepRecord


@dataclass(frozen=True)
class CellBegins:
    """A cell is tuned from now on; `lane` is None where it has the machine to itself."""

    index: int
    cell: Cell
    lane: Lane | None = None


def lanes_of(jobs: int | None, gpus: Sequence[Device], cores: Sequence[int]) -> tuple[Lane, ...]:
    """As many lanes as are asked for and as there are GPUs with cores of their own; none where there is but one.

    Args:
        jobs: most cells at the same time; None for as many as there are GPUs.
        gpus: the accelerators.
        cores: numbers of the CPU cores that this process may use.

    Raises:
        UsageError: more are asked for than there are devices.
    """
    if jobs is not None and jobs > max(1, len(gpus)):
        there = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one device"
        raise UsageError(
            f"{jobs} cells cannot be measured at the same time on {there}: they would slow each other down, and "
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
    title: str, cells: Sequence[tuple[Mapping[str, Any], Arguments]], tune: Tune, lanes: Sequence[Lane] = ()
) -> Iterator[CellBegins | CellEnded]:
    """Tune every cell; one that fails or does not fit is a row like any other.

    Args:
        title: what the sweep is called.
        cells: for each its values by axis, and the arguments of its tune.
        tune: tunes one; is told, by an event, to stop.
        lanes: where cells may be tuned at the same time; those that are not for any GPU follow, one by one.

    Raises:
        DeviceBusyError, StorageError, TrialProcessError: nothing can be tuned.
        KeyboardInterrupt: passed on, after all processes are ended.
    """
    running = _Sweep(title, [values for values, _ in cells])
    beside = [n for n, (_, arguments) in enumerate(cells) if lanes and arguments.get("device", "auto") in _FREE_CHOICES]
    yield from running.beside([(n, cells[n][1]) for n in beside], tune, lanes)
    for index, (_, arguments) in enumerate(cells):
        if index not in beside:
            yield running.begins(index)
            yield running.ended(index, _tuned(tune, arguments, threading.Event()))


class _Sweep:
    def __init__(self, title: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._title, self._cells = title, [Cell(dict(v)) for v in values]
        self._machine, self._started_at, self._started = detect(), time.time(), time.monotonic()

    def begins(self, index: int, lane: Lane | None = None) -> CellBegins:
        return CellBegins(index, self._cells[index], lane)

    def ended(self, index: int, found: tuple[TuneRecord | FailedTune | None, str]) -> CellEnded:
        self._cells[index] = replace(self._cells[index], found=found[0], problem=found[1])
        record = SweepRecord(
            title=self._title,
            cells=tuple(self._cells),
            machine=self._machine,
            seconds=time.monotonic() - self._started,
            started_at=self._started_at,
        )
        return CellEnded(index, self._cells[index], record)

    def beside(
        self, cells: Sequence[tuple[int, Arguments]], tune: Tune, lanes: Sequence[Lane]
    ) -> Iterator[CellBegins | CellEnded]:
        """Tune cells side by side, each lane its next one."""
        waiting, free, stop = list(cells), list(lanes), threading.Event()
        indices: dict[Future[tuple[TuneRecord | FailedTune | None, str]], tuple[int, Lane]] = {}
        with ThreadPoolExecutor(max(1, len(lanes))) as pool:
            try:
                while waiting or indices:
                    while waiting and free:
                        (index, arguments), lane = waiting.pop(0), free.pop(0)
                        yield self.begins(index, lane)
                        own = in_lane(arguments, lane, len(lanes))
                        indices[pool.submit(_on_cores, lane.cores, tune, own, stop)] = index, lane
                    done, _ = wait(indices, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        index, lane = indices.pop(future)
                        free.append(lane)
                        yield self.ended(index, future.result())
            finally:
                stop.set()


def in_lane(arguments: Arguments, lane: Lane, count: int) -> dict[str, Any]:
    """The arguments of a cell that shares the host with others: its lane's device, and its part of the host's memory."""
    host = str(arguments.get("host_memory", "80%")).strip()
    part = {"host_memory": f"{float(host[:-1]) / count:g}%"} if host.endswith("%") else {}
    return {**arguments, **part, "device": lane.device}


def _on_cores(
    cores: Sequence[int], tune: Tune, arguments: Arguments, stop: threading.Event
) -> tuple[TuneRecord | FailedTune | None, str]:
    """Tune on these cores: a thread's affinity is that of the processes it starts (Linux)."""
    os.sched_setaffinity(0, cores)
    return _tuned(tune, arguments, stop)


def _tuned(tune: Tune, arguments: Arguments, stop: threading.Event) -> tuple[TuneRecord | FailedTune | None, str]:
    """What a cell's tune came to, and what was wrong."""
    try:
        return tune(arguments, stop), ""
    except _ENDS_ALL:
        raise
    except AutofitError as error:
        return (error.seen if isinstance(error.seen, FailedTune) else None), str(error)
