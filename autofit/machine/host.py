"""What this host has: memory, cores and cgroup limits, read without loading a Keras backend."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil

from autofit.records.machine import Device, Machine

_SHARED_MEMORY = "/dev/shm"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_UNLIMITED_BYTES = 2**60  # cgroup v1 says "no limit" with a number just below 2**63


def detect(devices: tuple[Device, ...] = ()) -> Machine:
    """Read what this host has and what of it this process may use; `devices` are its accelerators."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for group in _cgroups("memory"):
        limit = _read_int(group / "memory.max") or _read_int(group / "memory.limit_in_bytes")
        if limit is not None and limit < min(total, _UNLIMITED_BYTES):
            used = _read_int(group / "memory.current") or _read_int(group / "memory.usage_in_bytes") or 0
            total, available = limit, min(available, max(0, limit - used + _page_cache_bytes(group)))
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        processor=_processor(),
        cores=usable_cores(),
        memory_bytes=total,
        available_bytes=available,
        devices=devices,
        shared_memory_bytes=shared_memory()[0],
        host=platform.node(),
    )


def shared_memory() -> tuple[int, int]:
    """Size and free room of /dev/shm, bytes; zeros where there is none. A container's is often 64 MiB."""
    try:
        room = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return 0, 0
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this process's cgroups; 0 where it does not tell."""
    return max(_oom_kill_counts(), default=0)


def tells_oom_kills() -> bool:
    """Whether the kernel tells how many processes it has killed for memory in this process's cgroups."""
    return bool(_oom_kill_counts())


def process_limit() -> tuple[int, int] | None:
    """Processes and threads in this process's tightest cgroup that limits them, and its limit; None without one."""
    limits = []
    for group in _cgroups("pids"):
        limit, count = _read_int(group / "pids.max"), _read_int(group / "pids.current")
        if limit is not None and count is not None:
            limits.append((count, limit))
    return min(limits, key=lambda pair: pair[1] - pair[0], default=None)


def cpu_quota() -> float | None:
    """The cores' worth of time that this process's cgroups allow; None where they set no quota."""
    quotas = []
    for group in _cgroups("cpu"):
        quota, _, period = next(iter(_read_lines(group / "cpu.max")), "").partition(" ")
        if not quota:
            quota = next(iter(_read_lines(group / "cpu.cfs_quota_us")), "")
            period = next(iter(_read_lines(group / "cpu.cfs_period_us")), "")
        if quota.isdigit() and period.isdigit():  # "max" and -1 say that there is none
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _oom_kill_counts() -> list[int]:
    counts = []
    for group in _cgroups("memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in _read_lines(group / name):
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    counts.append(int(value))
    return counts


def _cgroups(controller: str) -> list[Path]:
    """The cgroups of this process with a controller, its own and those above it, of cgroup v2 or v1."""
    groups = []
    for line in _read_lines(_OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUP_ROOT / controllers if controllers else _CGROUP_ROOT
        group = base / path.lstrip("/")
        groups += [g for g in (group, *group.parents) if g.is_relative_to(base) and g.is_dir()]
    return groups


def _page_cache_bytes(group: Path) -> int:
    """What of a cgroup's use is file cache that the kernel gives back when memory is asked for."""
    stat = dict(line.split(" ", 1) for line in _read_lines(group / "memory.stat") if " " in line)
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def usable_cores() -> int:
    """The CPU cores that this process may use: affinity and the container's quota count."""
    quota = cpu_quota()
    return visible_cores() if quota is None else min(visible_cores(), max(1, math.ceil(quota)))


def visible_cores() -> int:
    """The CPU cores that the scheduler may put this process on, of which libraries start a thread each."""
    return len(usable_core_numbers())


def usable_core_numbers() -> tuple[int, ...]:
    """The numbers of these cores."""
    return tuple(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _processor() -> str:
    for line in _read_lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_int(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None
