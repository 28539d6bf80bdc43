"""Other work on this machine: CPU time that neither this process nor its trial has used.

The kernel counts the time of each core and of each process. What it has counted for a core and not for one of our processes
is other work, including the time that the host of a virtual machine has taken away ("steal").
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from autofit.machine import host
from autofit.records.trial import BUSY_SHARE

_SAMPLE_SECONDS = 0.5  # before a tune: long enough to average over the scheduler's slices
_LEAST_CORES = 0.1  # used by a process that is named
_NAMED_PROCESSES = 2  # that fit a line


@dataclass(frozen=True)
class CoreSeconds:
    """Cumulative CPU seconds of the cores that this process may use: idle, and used by our own processes."""

    at: float
    idle: float
    own: float

    @classmethod
    def read(cls, tree: Sequence[psutil.Process]) -> CoreSeconds:
        """Read the present counts; `tree` are our processes besides this one."""
        own = os.times()
        return cls(time.monotonic(), _idle_seconds(), own.user + own.system + sum(_used_seconds(p) for p in tree))


def other_and_idle_cores(before: CoreSeconds, after: CoreSeconds) -> tuple[float, float]:
    """Return how many cores other processes used, and how many were idle, on average between two readings."""
    seconds, cores = after.at - before.at, host.visible_cores()
    if seconds <= 0:
        return 0.0, float(cores)
    idle = min(float(cores), max(0.0, (after.idle - before.idle) / seconds))
    own = max(0.0, (after.own - before.own) / seconds)
    return max(0.0, cores - idle - own), idle


def other_work() -> str | None:
    """Describe what other processes are doing on the machine; None if it is little. Takes half a second."""
    seconds_before, before = _seconds_by_process(), CoreSeconds.read(())
    time.sleep(_SAMPLE_SECONDS)
    after = CoreSeconds.read(())
    used, cores = other_and_idle_cores(before, after)[0], host.visible_cores()
    if used < BUSY_SHARE * cores:
        return None
    shares = {
        process: (seconds - seconds_before[process]) / (after.at - before.at)
        for process, seconds in _seconds_by_process().items()
        if process in seconds_before and process.pid != os.getpid()
    }
    busiest = sorted((process for process in shares if shares[process] >= _LEAST_CORES), key=lambda p: -shares[p])
    names = ", ".join(f"{host.process_name(process.pid)} {shares[process]:.1f}" for process in busiest[:_NAMED_PROCESSES])
    return f"other work uses {used:.1f} of {cores} cores" + (f" ({names})" if names else "")


def _idle_seconds() -> float:
    """Seconds that the cores of this process have been idle or waiting for storage."""
    by_core = psutil.cpu_times(percpu=True)
    usable = [by_core[number] for number in host.usable_core_numbers() if number < len(by_core)]
    return sum(times.idle + getattr(times, "iowait", 0.0) for times in usable)


def _used_seconds(process: psutil.Process) -> float:
    """Seconds that a process and its ended children have used."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + children)


def _seconds_by_process() -> dict[psutil.Process, float]:
    times = {process: process.info["cpu_times"] for process in psutil.process_iter(["cpu_times"])}
    return {process: float(used.user + used.system) for process, used in times.items() if used is not None}
