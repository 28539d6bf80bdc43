"""Checks of host memory, /dev/shm and CPU cores."""

from __future__ import annotations

import math
from collections.abc import Callable

import psutil

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.host import process_name
from autofit.records.machine import Machine
from autofit.records.units import counted, format_bytes

_LEAST_BYTES = 2**30  # a process that has imported TensorFlow and builds a model takes about half of it
_NAMED_PROCESSES = 3
_LEAST_SHARED_BYTES = 2**20  # locks and semaphores of worker processes take some KiB


def memory(machine: Machine, total_bytes: int, largest: Callable[[], str]) -> Finding:
    """Check how much host memory is available to this process.

    Args:
        machine: the memory that this process may use.
        total_bytes: the machine's memory; larger than `machine.memory_bytes` if a cgroup limits it.
        largest: names the largest processes; called only if less than half of the memory is available.
    """
    limited = machine.memory_bytes < total_bytes
    detail = f"{format_bytes(machine.available_bytes)} of {format_bytes(machine.memory_bytes)} available"
    detail += f" (limit of the cgroup; the machine has {format_bytes(total_bytes)})" if limited else ""
    if machine.available_bytes >= max(machine.memory_bytes / 2, _LEAST_BYTES):
        return ok("host memory", detail)
    detail += f"; the largest processes are {largest()}"
    remedy = "End other processes" + (", or raise the container's limit (docker run --memory)" if limited else "")
    if machine.available_bytes < _LEAST_BYTES:
        return problem("host memory", detail, f"{remedy}: a trial's process alone takes half a GiB.")
    return warning("host memory", detail, f"{remedy}: a trial may use only what is available.")


def largest_processes() -> str:
    """The processes with the most resident memory."""
    sizes = ((process.info["memory_info"], process.pid) for process in psutil.process_iter(["memory_info"]))
    largest = sorted(((size.rss, pid) for size, pid in sizes if size is not None), reverse=True)
    return ", ".join(f"{process_name(pid)} {format_bytes(size)}" for size, pid in largest[:_NAMED_PROCESSES])


def shared_memory(size_bytes: int, free_bytes: int) -> Finding:
    """Check /dev/shm, which holds the locks and shared memory of worker processes; its size is 0 if it is missing."""
    remedy = "Start the container with docker run --shm-size=2g, or run mount -o remount,size=2g /dev/shm."
    if not size_bytes:
        return problem("/dev/shm", "missing: worker processes cannot create their locks", remedy)
    detail = f"{format_bytes(free_bytes)} of {format_bytes(size_bytes)} free"
    if free_bytes < _LEAST_SHARED_BYTES:
        return problem("/dev/shm", f"{detail}: worker processes crash when they share memory", remedy)
    return ok("/dev/shm", detail)


def cores(visible: int, quota: float | None) -> Finding:
    """Check that the CPU quota allows a thread on each core.

    Args:
        visible: cores that this process may run on.
        quota: the cgroup's CPU quota in cores; None for none.
    """
    if quota is None or quota >= visible:
        return ok("cores", f"{visible}")
    threads = max(1, math.floor(quota))
    return warning(
        "cores",
        f"{visible}, but the cgroup's quota is {quota:.3g}: TensorFlow starts {counted(visible, 'thread')}, and the kernel "
        "stops all of them when the quota is used up",
        f"Use docker run --cpuset-cpus instead of --cpus, or export TF_NUM_INTRAOP_THREADS={threads}.",
    )
