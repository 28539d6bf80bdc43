"""Memory, cores and cgroup limits of this host, read without loading a Keras backend."""

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
_UNLIMITED_BYTES = 2**60  # cgroup v1 writes "no limit" as a number just below 2**63


def bytes_read(process: psutil.Process) -> int | None:
    """Bytes that a process has read from storage, the page cache not counted; None where the system does not say.

    Raises:
        psutil.NoSuchProcess: it has ended; its parent then counts them.
    """
    try:
        return int(process.io_counters().read_bytes)
    except (psutil.AccessDenied, AttributeError):
        return None


def process_name(pid: int) -> str:
    """A process, for people: `python (pid 4711)`, or its number alone where the system does not say more."""
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"


def detect(devices: tuple[Device, ...] = ()) -> Machine:
    """Read the host's resources and the cgroup limits of this process; `devices` are its accelerators."""
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
    """Return the size of /dev/shm and its free space, bytes; zeros where there is none. A container's is often 64 MiB."""
    try:
        room = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return 0, 0
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def oom_kills() -> int:
    """Return how many processes of this process's cgroups the kernel's OOM killer has killed; 0 where it keeps no count."""
    return max(_oom_kill_counts(), default=0)


def counts_oom_kills() -> bool:
    """Return whether the kernel counts OOM kills in this process's cgroups."""
    return bool(_oom_kill_counts())


def process_limit() -> tuple[int, int] | None:
    """Return (processes and threads, their limit) of the cgroup with the least room for more; None without a limit."""
    limits = []
    for group in _cgroups("pids"):
        limit, count = _read_int(group / "pids.max"), _read_int(group / "pids.current")
        if limit is not None and count is not None:
            limits.append((count, limit))
    return min(limits, key=lambda pair: pair[1] - pair[0], default=None)


def cpu_quota() -> float | None:
    """Return the CPU quota of this process's cgroups, in cores; None where they set none."""
    quotas = []
    for group in _cgroups("cpu"):
        quota, _, period = next(iter(_read_lines(group / "cpu.max")), "").partition(" ")
        if not quota:
            quota = next(iter(_read_lines(group / "cpu.cfs_quota_us")), "")
            period = next(iter(_read_lines(group / "cpu.cfs_period_us")), "")
        if quota.isdigit() and period.isdigit():  # "max" and -1 mean no quota
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
    """Return the cgroups of this process that have a controller, its own and their parents, of cgroup v2 or v1."""
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
    """Return the part of a cgroup's use that is file cache, which the kernel frees under memory pressure."""
    stat = dict(line.split(" ", 1) for line in _read_lines(group / "memory.stat") if " " in line)
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def usable_cores() -> int:
    """Return how many CPU cores this process may use, by its affinity and its CPU quota."""
    quota = cpu_quota()
    return visible_cores() if quota is None else min(visible_cores(), max(1, math.ceil(quota)))


def visible_cores() -> int:
    """Return how many CPU cores are in this process's affinity mask; libraries start a thread for each."""
    return len(usable_core_numbers())


def usable_core_numbers() -> tuple[int, ...]:
    """Return the numbers of the cores in this process's affinity mask."""
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
