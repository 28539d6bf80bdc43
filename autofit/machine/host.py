"""Read this host without loading a Keras backend: memory, cores, cgroup limits, process memory, and
other work.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from autofit.errors import TrialProcessError
from autofit.records.machine import Device, Machine
from autofit.records.trial import BUSY_SHARE, Conditions

Read = TypeVar("Read")

_SHARED_MEMORY = "/dev/shm"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# long enough to average over the scheduler's time slices
_SAMPLE_SECONDS = 0.5
# a message names only processes that use at least this many cores
_LEAST_CORES = 0.1
# the number of names that fit on a line
_NAMED_PROCESSES = 2


def detect(devices: tuple[Device, ...] = ()) -> Machine:
    """Read the host's resources and the cgroup limits of this process.

    `devices` are the host's accelerators.
    """
    memory = psutil.virtual_memory()
    total = memory.total
    available = memory.available
    for group in _cgroups("memory"):
        limit = _read_int(group / "memory.max") or _read_int(
            group / "memory.limit_in_bytes"
        )
        # version 1 writes "no limit" as a number just below 2**63
        if limit is not None and limit < total:
            in_version_2 = _read_int(group / "memory.current")
            used = in_version_2 or _read_int(group / "memory.usage_in_bytes") or 0
            lines = _read_lines(group / "memory.stat")
            stat = dict(line.split(" ", 1) for line in lines if " " in line)
            # the file cache, which the kernel frees under memory pressure
            cached = int(
                stat.get("total_inactive_file", stat.get("inactive_file", "0"))
            )
            total = limit
            available = min(available, max(0, limit - used + cached))
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        processor=_model_name() or platform.processor() or platform.machine(),
        cores=usable_cores(),
        memory_bytes=total,
        available_bytes=available,
        devices=devices,
        host=platform.node(),
    )


def _model_name() -> str:
    for line in _read_lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def temporary_folder() -> Path:
    """Return the folder for temporary files; raise TrialProcessError if no folder takes any."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise TrialProcessError(
            f"{error.strerror}. Free some space in one of them, or set TMPDIR to another folder"
        ) from None


def shared_memory() -> tuple[int, int]:
    """Return the size and the free space of /dev/shm in bytes.

    Zeros if it is missing. A container's is often 64 MiB.
    """
    try:
        total, _, free = shutil.disk_usage(_SHARED_MEMORY)
    except OSError:
        return 0, 0
    return total, free


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use, given its affinity mask and CPU
    quota.
    """
    cores = visible_cores()
    quota = cpu_quota()
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def visible_cores() -> int:
    """Return the number of CPU cores in this process's affinity mask.

    Libraries start a thread for each.
    """
    return len(usable_core_numbers())


def usable_core_numbers() -> tuple[int, ...]:
    """Return the numbers of the cores in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    # macOS has no such masks
    return tuple(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """Return the CPU quota of this process's cgroups, in cores; None if there is none."""
    quotas = []
    for group in _cgroups("cpu"):
        # v2 has the first
        files = [
            group / name
            for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
        words = " ".join(line for file in files for line in _read_lines(file)).split()
        # "max" and -1 mean no quota
        if len(words) == 2 and all(word.isdigit() for word in words):
            microseconds, period = words
            quotas.append(int(microseconds) / int(period))
    return min(quotas, default=None)


def oom_kills() -> int:
    """Return how many processes in this process's cgroups the OOM killer has killed.

    0 if the kernel does not count.
    """
    most = 0
    for group in _cgroups("memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in _read_lines(group / name):
                if line.startswith("oom_kill "):
                    most = max(most, int(line.split()[1]))
    return most


@dataclass(frozen=True)
class ProcessMemory:
    """Host memory of a process in bytes, as the kernel counts it."""

    # pages that the kernel cannot take back, each divided by the number of processes that map it
    # (PSS)
    held: int
    # private pages written since this process or its parent was forked; no other process maps them
    written: int
    # all pages (RSS)
    resident: int
    # the peak of `resident`, even if it was short
    highest_resident: int

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessMemory:
        """Read the memory of a process.

        Without Linux's counts, only PSS (or else unshared pages) and RSS are known.
        """
        # Pages of a file that are as they are on disk do not count, whether of a library or of data
        # that is mapped: the kernel drops them when memory is short, so a limit does not end a
        # process that has many of them.
        try:
            rollup = _kernel_sizes(process.pid, "smaps_rollup")
            # pages of shared memory, and those of files that are not on disk yet
            dirty_mapped = max(
                rollup["Pss_Shmem"], rollup.get("Pss_Dirty", 0) - rollup["Pss_Anon"]
            )
            return cls(
                held=rollup["Pss_Anon"] + dirty_mapped,
                written=max(0, rollup["Private_Dirty"] - dirty_mapped),
                resident=rollup["Rss"],
                highest_resident=_kernel_sizes(process.pid, "status")["VmHWM"],
            )
        except (OSError, KeyError):
            memory = process.memory_full_info()
            return cls(getattr(memory, "pss", memory.uss), 0, memory.rss, memory.rss)


def of_living(
    processes: Iterable[psutil.Process], query: Callable[[psutil.Process], Read]
) -> list[Read]:
    """Return the answers to a query about processes, without those that have ended or that the
    system does not count.
    """
    answers = []
    for process in processes:
        with contextlib.suppress(psutil.Error, AttributeError):
            answers.append(query(process))
    return answers


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that processes have used, with that of their children that have ended, in
    seconds.
    """

    def used(process: psutil.Process) -> float:
        # user, system, and both of the children
        return float(sum(process.cpu_times()[:4]))

    return sum(of_living(processes, used))


def process_name(pid: int) -> str:
    """Describe a process as `python (pid 4711)`, or as `pid 4711` if its name cannot be read."""
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"


def _cgroups(controller: str) -> list[Path]:
    # the folders of this process's cgroups with this controller and of their parents, for cgroups
    # v1 and v2
    groups = []
    for line in _read_lines(_OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUP_ROOT / controllers
        group = base / path.lstrip("/")
        folders = (group, *group.parents)
        groups += [
            each for each in folders if each.is_relative_to(base) and each.is_dir()
        ]
    return groups


def _kernel_sizes(pid: int, name: str) -> dict[str, int]:
    # from a file of /proc/PID with lines such as `Rss:  12 kB`
    sizes = {}
    for line in Path(f"/proc/{pid}/{name}").read_text(errors="replace").splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            sizes[words[0][:-1]] = int(words[1]) * 1024
    return sizes


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_int(path: Path) -> int | None:
    for line in _read_lines(path)[:1]:
        if line.strip().isdigit():
            return int(line)
    return None


class CoreSeconds(NamedTuple):
    """Cumulative seconds of the cores that this process may use, by who used them."""

    at: float = 0.0
    # or waiting for storage
    idle: float = 0.0
    # used by our own processes
    own: float = 0.0
    # all that the kernel has counted; the rest went to other work, or to the host of a virtual
    # machine
    counted: float = 0.0

    @classmethod
    def read(cls, tree: Sequence[psutil.Process]) -> CoreSeconds:
        """Read the current counts; `tree` lists our processes other than this one."""
        by_core = psutil.cpu_times(percpu=True)
        usable = [
            by_core[number] for number in usable_core_numbers() if number < len(by_core)
        ]
        idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in usable)
        # children that have ended count: worker processes may not outlive an epoch
        own = sum(os.times()[:4]) + cpu_seconds(tree)
        return cls(time.monotonic(), idle, own, sum(map(sum, usable)))

    def plus(self, before: CoreSeconds, after: CoreSeconds) -> CoreSeconds:
        """Return these seconds and those between two readings."""
        counts = zip(self, before, after, strict=True)
        return CoreSeconds(*(total + late - early for total, early, late in counts))


def other_and_idle_cores(
    before: CoreSeconds, after: CoreSeconds
) -> tuple[float, float] | None:
    """Return how many cores other processes used, and how many were idle, on average.

    None if the counts did not grow.
    """
    # in some sandboxes the kernel counts nothing (gVisor until June 2026): other work would seem to
    # use every core
    seconds = after.at - before.at
    cores = visible_cores()
    if seconds <= 0 or after.counted <= before.counted:
        return None
    idle = min(float(cores), max(0.0, (after.idle - before.idle) / seconds))
    own = max(0.0, (after.own - before.own) / seconds)
    return max(0.0, cores - idle - own), idle


def other_work(*, beside_idle_cores: bool = True) -> str | None:
    """Describe the CPU use of other processes on this machine.

    None if it is low or unknown. Takes half a second.
    """
    # the next reading is the average since this one
    list(psutil.process_iter(["cpu_percent"]))
    before = CoreSeconds.read(())
    time.sleep(_SAMPLE_SECONDS)
    used, idle = other_and_idle_cores(before, CoreSeconds.read(())) or (None, None)
    cores = visible_cores()
    # work that leaves cores idle may count as low, because nothing waits for a core then
    is_low = not (beside_idle_cores or Conditions(cores, used, idle).is_disturbed)
    if used is None or used < BUSY_SHARE * cores or is_low:
        return None
    busy = {}
    for process in psutil.process_iter(["cpu_percent"]):
        share = (process.info["cpu_percent"] or 0.0) / 100
        if process.pid != os.getpid() and share >= _LEAST_CORES:
            busy[process.pid] = share
    busiest = sorted(busy, key=lambda pid: -busy[pid])[:_NAMED_PROCESSES]
    names = ", ".join(f"{process_name(pid)} {busy[pid]:.1f}" for pid in busiest)
    text = f"other work uses {used:.1f} of {cores} cores"
    return f"{text} ({names})" if names else text
