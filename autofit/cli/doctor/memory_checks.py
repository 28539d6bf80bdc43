"""Checks of host memory: size, limit, largest processes, swap and /dev/shm."""

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
_HOLDERS = 3  # processes that are named
_CANDIDATES = 10  # processes with the largest resident sets, of which PSS, slow to read, selects the holders
_MOST_SWAP = 0.05  # share of the machine's memory
_CONTAINER_BYTES = 64 * 2**20  # Docker's default for /dev/shm; enough for Keras, which sends batches through pipes
_LEAST_SHARED_BYTES = 2**20  # locks and semaphores of worker processes take some KiB


@dataclass(frozen=True)
class Holder:
    """A process and the host memory it holds, bytes."""

    name: str
    pid: int
    size_bytes: int


def host(machine: Machine, total_bytes: int, holders: Callable[[], Sequence[Holder]]) -> Finding:
    """Check how much host memory is available to this process.

    Args:
        machine: the memory that this process may use.
        total_bytes: the machine's memory; larger than `machine.memory_bytes` if a cgroup limits it.
        holders: reads the largest processes; called only if less than half of the memory is available.
    """
    limited = machine.memory_bytes < total_bytes
    detail = f"{format_bytes(machine.available_bytes)} of {format_bytes(machine.memory_bytes)} available"
    detail += f" (limit of the cgroup; the machine has {format_bytes(total_bytes)})" if limited else ""
    if machine.available_bytes >= max(machine.memory_bytes / 2, _LEAST_BYTES):
        return ok("host memory", detail)
    largest = ", ".join(f"{h.name} (pid {h.pid}) {format_bytes(h.size_bytes)}" for h in holders())
    detail += f"; the largest processes are {largest}" if largest else ""
    remedy = "End other processes" + (", or raise the container's limit (docker run --memory)" if limited else "")
    if machine.available_bytes < _LEAST_BYTES:
        return problem("host memory", detail, f"{remedy}: a trial's process alone takes half a GiB.")
    return warning("host memory", detail, f"{remedy}: a trial may use only what is available.")


def holders() -> list[Holder]:
    """The processes that hold the most host memory, by PSS if it can be read, by resident set otherwise."""
    resident = [
        (process.info["memory_info"].rss, process)
        for process in psutil.process_iter(["memory_info"])
        if process.info["memory_info"] is not None
    ]
    largest = []
    for rss, process in sorted(resident, key=lambda pair: pair[0], reverse=True)[:_CANDIDATES]:
        with contextlib.suppress(psutil.NoSuchProcess):
            size = rss
            with contextlib.suppress(psutil.AccessDenied):
                size = getattr(process.memory_full_info(), "pss", rss)
            largest.append(Holder(process.name(), process.pid, size))
    return sorted(largest, key=lambda holder: holder.size_bytes, reverse=True)[:_HOLDERS]


def swap(used_bytes: int, swap_bytes: int, total_bytes: int) -> Finding:
    """Check that little swap is in use: pages that return from disk delay steps."""
    if swap_bytes == 0:
        return ok("swap", "none")
    detail = f"{format_bytes(used_bytes)} of {format_bytes(swap_bytes)} in use"
    if used_bytes <= _MOST_SWAP * total_bytes:
        return ok("swap", detail)
    return warning(
        "swap",
        f"{detail}: pages that return from disk make readings noisy",
        "End other processes, then run sudo swapoff -a && sudo swapon -a.",
    )


def swap_use() -> tuple[int, int]:
    """Swap in use and its size, bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # psutil warns if a container hides the counts of swapped pages, unused here
        usage = psutil.swap_memory()
    return usage.used, usage.total


def shared(size_bytes: int, free_bytes: int, *, expected: bool) -> Finding | None:
    """Check /dev/shm, which holds the locks and shared memory of worker processes; None if the platform has none.

    Args:
        size_bytes: its size; 0 if it is missing.
        free_bytes: its free space.
        expected: whether this platform has it.
    """
    if not expected:
        return None
    remedy = "Start the container with docker run --shm-size=2g, or run mount -o remount,size=2g /dev/shm."
    if not size_bytes:
        return problem("/dev/shm", "missing: worker processes cannot create their locks", remedy)
    detail = f"{format_bytes(free_bytes)} of {format_bytes(size_bytes)} free"
    if free_bytes < _LEAST_SHARED_BYTES:
        return problem("/dev/shm", f"{detail}: worker processes crash when they share memory", remedy)
    if size_bytes <= _CONTAINER_BYTES:
        return ok("/dev/shm", f"{detail}, a container's default: too small only for data that uses shared memory itself")
    return ok("/dev/shm", detail)
