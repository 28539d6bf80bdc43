"""Checks of CPU cores, visibility of OOM kills, and limits on processes and files."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from autofit.cli.doctor.findings import Finding, ok, warning
from autofit.records.units import counted, format_bytes

_LEAST_FILES = 1024  # Linux's default
_LEAST_PROCESSES = 512  # threads count, and TensorFlow starts several per core


def cores(machine_cores: int, visible: int, quota: float | None) -> Finding:
    """Check the cores that this process may use.

    Args:
        machine_cores: the machine's cores.
        visible: cores that this process may run on.
        quota: the cgroup's CPU quota, cores; None for none.
    """
    detail = f"{visible} of {machine_cores}, by affinity" if visible < machine_cores else f"{visible}"
    if quota is not None and quota < visible:
        threads = max(1, math.floor(quota))
        return warning(
            "cores",
            f"{detail}, but the cgroup's quota is {quota:.3g}: TensorFlow starts {counted(visible, 'thread')}, and "
            "the kernel stops all of them when the quota is exhausted",
            f"Use docker run --cpuset-cpus instead of --cpus, or export TF_NUM_INTRAOP_THREADS={threads}.",
        )
    if visible == 1:
        return warning(
            "cores",
            f"{detail}: workers and the train step share it",
            "Give the process more cores (taskset, docker run --cpuset-cpus) if the machine has more.",
        )
    return ok("cores", detail)


def oom_kills(*, visible: bool, system: str) -> Finding | None:
    """Check that the kernel's OOM kills are visible; None if the platform has no cgroups."""
    if system != "linux":
        return None
    if visible:
        return ok("oom kills", "visible: the cgroup counts them")
    return warning(
        "oom kills",
        "not visible: a killed trial counts as out of memory only near its limit",
        "Run autofit in its own cgroup: systemd-run --user --scope autofit tune FILE.yaml.",
    )


def limits(
    files: int | None, processes: int | None, address_bytes: int | None, group: tuple[int, int] | None
) -> Iterator[Finding]:
    """Check the limits on this user's processes; None means no limit.

    Args:
        files: open files per process.
        processes: processes and threads of this user.
        address_bytes: address space per process.
        group: processes and threads in the cgroup, and its limit.
    """
    if files is not None and files < _LEAST_FILES:
        yield warning(
            "open files", f"limited to {files} per process: workers and their queues may need more", "Run ulimit -n 4096."
        )
    if processes is not None and processes < _LEAST_PROCESSES:
        yield warning(
            "processes",
            f"limited to {processes}, including TensorFlow's threads",
            "Run ulimit -u 4096, or ask the administrator to raise the limit.",
        )
    if address_bytes is not None:
        yield warning(
            "address space",
            f"limited to {format_bytes(address_bytes)}: CUDA reserves far more than it uses",
            "Run ulimit -v unlimited; host_memory limits the memory that trials use.",
        )
    if group is not None and group[1] - group[0] < _LEAST_PROCESSES:
        yield warning(
            "processes",
            f"{group[0]} of the {group[1]} that the cgroup allows, including threads",
            "Start the container with docker run --pids-limit=4096.",
        )


def resource_limits() -> tuple[int | None, int | None, int | None]:
    """Limits on open files, processes and address space (bytes); None for no limit."""
    if sys.platform == "win32":
        return None, None, None
    import resource  # missing on Windows

    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS)
    soft_limits = (resource.getrlimit(kind)[0] for kind in kinds)
    files, processes, address = (None if limit == resource.RLIM_INFINITY else limit for limit in soft_limits)
    return files, processes, address
