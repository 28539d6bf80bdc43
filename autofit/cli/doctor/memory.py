"""Host memory: what there is and may be used, who holds it, swap, and /dev/shm."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.records.machine import Machine
from autofit.records.units import format_bytes

_LEAST_BYTES = 2**30  # a process that has imported TensorFlow and builds a model takes about half of it
_HOLDERS = 3
_CANDIDATES = 10  # resident sets are quickly read: of the largest, PSS decides
_MUCH_SWAP = 0.05  # of the machine's memory
_CONTAINER_BYTES = 64 * 2**20  # what Docker gives /dev/shm unless told otherwise; Keras hands batches over in pipes
_LEAST_SHARED_BYTES = 2**20


@dataclass(frozen=True)
class Holder:
    """A process and the host memory that it holds, bytes."""

    name: str
    pid: int
    size_bytes: int


def host(machine: Machine, total_bytes: int, holders: Callable[[], Sequence[Holder]]) -> Finding:
    """Host memory that this process may use and what of it is available.

    Args:
        machine: what this process may use.
        total_bytes: what the machine has; more than that where a cgroup limits it.
        holders: reads who holds the most; asked only where less than half is available.
    """
    limited = machine.memory_bytes < total_bytes
    of = f"{format_bytes(machine.memory_bytes)} available"
    whole = f" (limit of the cgroup; the machine has {format_bytes(total_bytes)})" if limited else ""
    detail = f"{format_bytes(machine.available_bytes)} of {of}{whole}"
    if machine.available_bytes >= max(machine.memory_bytes / 2, _LEAST_BYTES):
        return ok("host memory", detail)
    most = ", ".join(f"{h.name} (pid {h.pid}) {format_bytes(h.size_bytes)}" for h in holders())
    detail += f"; held most by {most}" if most else ""
    more = ", or raise the container's limit (docker run --memory)" if limited else ""
    if machine.available_bytes < _LEAST_BYTES:
        return problem("host memory", detail, f"End what holds it{more}: a trial's process alone takes half a GiB.")
    return warning("host memory", detail, f"End what holds it{more}: a trial may use what is available, no more.")


def holders() -> list[Holder]:
    """The processes that hold the most host memory: PSS where it can be read, resident sets otherwise."""
    resident = [
        (process.info["memory_info"].rss, process)
        for process in psutil.process_iter(["memory_info"])
        if process.info["memory_info"] is not None
    ]
    found = []
    for rss, process in sorted(resident, key=lambda pair: pair[0], reverse=True)[:_CANDIDATES]:
        with contextlib.suppress(psutil.NoSuchProcess):
            size = rss
            with contextlib.suppress(psutil.AccessDenied):
                size = getattr(process.memory_full_info(), "pss", rss)
            found.append(Holder(process.name(), process.pid, size))
    return sorted(found, key=lambda holder: holder.size_bytes, reverse=True)[:_HOLDERS]


def swap(used_bytes: int, swap_bytes: int, total_bytes: int) -> Finding:
    """Swap in use: pages that come back from storage make steps late."""
    if swap_bytes == 0:
        return ok("swap", "none")
    detail = f"{format_bytes(used_bytes)} of {format_bytes(swap_bytes)} in use"
    if used_bytes <= _MUCH_SWAP * total_bytes:
        return ok("swap", detail)
    return warning(
        "swap",
        f"{detail}: pages that come back make readings unsteady",
        "End what you do not need, then run sudo swapoff -a && sudo swapon -a.",
    )


def swap_use() -> tuple[int, int]:
    """Swap in use and in all, bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was swapped in and out, which some containers hide, is not wanted
        found = psutil.swap_memory()
    return found.used, found.total


def shared(size_bytes: int, free_bytes: int, *, expected: bool) -> Finding | None:
    """/dev/shm, in which worker processes keep their locks and what they share; None where no platform has it.

    Args:
        size_bytes: its size, 0 where there is none.
        free_bytes: its free room.
        expected: whether this platform has it.
    """
    if not expected:
        return None
    more = "Start the container with docker run --shm-size=2g, or run mount -o remount,size=2g /dev/shm."
    if not size_bytes:
        return problem("/dev/shm", "there is none: worker processes cannot make their locks", more)
    detail = f"{format_bytes(free_bytes)} of {format_bytes(size_bytes)} free"
    if free_bytes < _LEAST_SHARED_BYTES:
        return problem("/dev/shm", f"{detail}: worker processes die when they share anything", more)
    if size_bytes <= _CONTAINER_BYTES:
        return ok("/dev/shm", f"{detail}, a container's default: too little only for data that shares memory itself")
    return ok("/dev/shm", detail)
