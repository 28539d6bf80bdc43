"""Tune cells on this machine: one after the other, or in parallel if each has its own device and cores.

cells ─┬─> slot (gpu:0, half of the cores) ─> tune, tune, …  ─┐
       └─> slot (gpu:1, the other half)    ─> tune, tune, …  ─┴─> then cells on the CPU, or on several or named GPUs
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from autofit.errors import CancelledError, UsageError
from autofit.records.machine import Device
from autofit.records.sweep import Cell
from autofit.tuning.cells import CellRequest, Report, Tune, tuned
from autofit.tuning.settings import TuneSettings


@dataclass(frozen=True)
class Slot:
    """A device and the CPU cores for one cell at a time."""

    device: str
    cores: tuple[int, ...]


def slots_of(
    jobs: int | None,
    gpus: Sequence[Device],
    cores: Sequence[int],
    nearby: Callable[[Device], Sequence[int]] = lambda device: (),
) -> tuple[Slot, ...]:
    """Divide a machine into slots: one per GPU, each with its own cores, up to `jobs`.

    If there would be only one slot, the result is empty, because that slot would be the whole machine. `cores` are the
    numbers of the CPU cores that this process may use. `nearby` returns those on a GPU's NUMA node, or nothing if unknown.
    """
    if jobs is not None and jobs > max(1, len(gpus)):
        available = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one device"
        raise UsageError(
            f"{jobs} cells cannot be tuned at the same time on {available}: they would slow each other down and falsify "
            f"the results. Set jobs to {max(1, len(gpus))} or less",
            key="jobs",
        )
    count = min(len(gpus) if jobs is None else jobs, len(cores))
    if count < 2:
        return ()
    share, free = len(cores) // count, list(cores)
    slots = []
    for gpu in gpus[:count]:
        near = set(nearby(gpu))
        taken = sorted(free, key=lambda core: core not in near)[:share]  # near cores first; the sort keeps their order
        free = [core for core in free if core not in taken]
        slots.append(Slot(f"gpu:{gpu.index}", tuple(sorted(taken))))
    return tuple(slots)


def in_slot(settings: TuneSettings, device: str, count: float) -> TuneSettings:
    """Return the settings of a cell in one of `count` slots: they name its device and its share of host memory."""
    limit = str(settings.host_memory).strip()
    share = {"host_memory": f"{float(limit[:-1]) / count:g}%"} if limit.endswith("%") else {}
    return settings.model_copy(update={**share, "device": device})


class LocalExecutor:
    """Tunes cells on this machine; see `Executor`.

    Each of `slots` tunes one cell at a time; cells on the CPU, or on several or named GPUs, follow one after the other. If
    there are no slots, all cells are tuned one after the other.
    """

    def __init__(self, tune: Tune, slots: Sequence[Slot] = ()) -> None:
        self._tune, self._slots, self._cancelled = tune, slots, threading.Event()
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in slots:
            self._free.put(slot)
        self._parallel = ThreadPoolExecutor(max(1, len(slots)))
        self._alone = ThreadPoolExecutor(1)

    def start(self, requests: Sequence[CellRequest], report: Report) -> Sequence[Future[Cell]]:
        if any(request.host_labels for request in requests):
            raise UsageError(
                "labels select hosts of a cluster, but this sweep runs on one machine; remove host_labels, or use the "
                "executor of a cluster",
                key="host_labels",
            )
        parallel = {
            index: self._parallel.submit(self._in_slot, index, request, report)
            for index, request in enumerate(requests)
            if self._slots and request.settings.device in ("auto", "gpu") and request.settings.device_count == 1
        }
        return [
            parallel.get(index) or self._alone.submit(self._after, parallel.values(), index, request, report)
            for index, request in enumerate(requests)
        ]

    def close(self) -> None:
        self._cancelled.set()
        for pool in (self._parallel, self._alone):
            pool.shutdown(cancel_futures=True)

    def _in_slot(self, index: int, request: CellRequest, report: Report) -> Cell:
        slot = self._free.get()
        try:
            os.sched_setaffinity(0, slot.cores)  # applies to this thread and to the processes that it starts
            shared = replace(request, settings=in_slot(request.settings, slot.device, len(self._slots)))
            return self._tuned(index, shared, report, slot.device)
        finally:
            self._free.put(slot)

    def _after(self, parallel: Iterable[Future[Cell]], index: int, request: CellRequest, report: Report) -> Cell:
        concurrent.futures.wait(parallel)
        return self._tuned(index, request, report, "")

    def _tuned(self, index: int, request: CellRequest, report: Report, device: str) -> Cell:
        if self._cancelled.is_set():
            raise CancelledError("the sweep was cancelled")
        report(index, device, "")
        return tuned(self._tune, request, partial(report, index, device), self._cancelled)
