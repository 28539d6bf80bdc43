"""Other work on this machine: CPU time of the cores of this process that neither it nor a tree of processes has taken.

The kernel counts the time of every core, and that of every process; what it has counted for a core and not for a process of
ours is other work, time that the host of a virtual machine has taken away ("steal") included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from autofit.machine import host
from autofit.records.conditions import BUSY_SHARE

_SAMPLE_SECONDS = 0.5  # before a tune: long enough for a mean of the scheduler's slices
_NAMED_SHARE = 0.1  # of a core: what takes less is not named
_NAMED_COUNT = 2  # the most, to fit a line


@dataclass(frozen=True)
class CoreSeconds:
    """CPU time, seconds: of all cores that this process may use, of that time idle, and of our own processes."""

    at: float
    idle: float
    own: float

    @classmethod
    def read(cls, tree: Sequence[psutil.Process]) -> CoreSeconds:
        """Read the present counts; `tree` are processes of ours beside this one."""
        own = os.times()
        return cls(time.monotonic(), _idle_seconds(), own.user + own.system + sum(_taken(process) for process in tree))


def other_and_idle_cores(before: CoreSeconds, after: CoreSeconds) -> tuple[float, float]:
    """How many of the cores other processes used between two readings, and how many nobody; means."""
    seconds, cores = after.at - before.at, host.visible_cores()
    if seconds <= 0:
        return 0.0, float(cores)
    idle = min(float(cores), max(0.0, (after.idle - before.idle) / seconds))
    own = max(0.0, (after.own - before.own) / seconds)
    return max(0.0, cores - idle - own), idle


def other_work() -> str | None:
    """What other processes do on the machine now, for people; None where it is little. Takes half a second."""
    counted_before, before = _seconds_by_process(), CoreSeconds.read(())
    time.sleep(_SAMPLE_SECONDS)
    after = CoreSeconds.read(())
    used, cores = other_and_idle_cores(before, after)[0], host.visible_cores()
    if used < BUSY_SHARE * cores:
        return None
    seconds = after.at - before.at
    shares = {
        process: (taken - counted_before[process]) / seconds
        for process, taken in _seconds_by_process().items()
        if process in counted_before and process.pid != os.getpid()
    }
    most = sorted((process for process in shares if shares[process] >= _NAMED_SHARE), key=lambda p: -shares[p])
    names = ", ".join(f"{host.process_name(process.pid)} {shares[process]:.1f}" for process in most[:_NAMED_COUNT])
    return f"other work uses {used:.1f} of {cores} cores" + (f" ({names})" if names else "")


def _idle_seconds() -> float:
    """Seconds that the cores of this process have been idle, waiting for storage included."""
    by_core = psutil.cpu_times(percpu=True)
    mine = [by_core[number] for number in host.usable_core_numbers() if number < len(by_core)]
    return sum(times.idle + getattr(times, "iowait", 0.0) for times in mine)


def _taken(process: psutil.Process) -> float:
    """Seconds that a process has taken, with its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + children)


def _seconds_by_process() -> dict[psutil.Process, float]:
    seconds = {}
    for process in psutil.process_iter(["cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            seconds[process] = float(times.user + times.system)
    return seconds
