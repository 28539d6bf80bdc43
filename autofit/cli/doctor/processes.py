"""Cores, whether the kernel's kills are seen, and how many processes and files a user may have."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from autofit.cli.doctor.findings import Finding, ok, warning

_FEW_FILES = 1024
_FEW_PROCESSES = 512  # TensorFlow alone starts several threads a core, and threads count


def cores(machine_cores: int, visible: int, quota: float | None) -> Finding:
    """The machine's cores, those that this process may run on, and the cgroup's quota in cores."""
    detail = f"{visible} of {machine_cores}, by affinity" if visible < machine_cores else f"{visible}"
    if quota is not None and quota < visible:
        few = max(1, math.floor(quota))
        return warning(
            "cores",
            f"{detail}, but the cgroup's quota is {quota:.3g}: TensorFlow starts a thread for each of {visible}, "
            "and the kernel stops them all when the quota is spent",
            f"Use docker run --cpuset-cpus in place of --cpus, or export TF_NUM_INTRAOP_THREADS={few}.",
        )
    if visible == 1:
        return warning(
            "cores",
            f"{detail}: workers and the train step take turns on it",
            "Give the process more cores (taskset, docker run --cpuset-cpus) if there are more.",
        )
    return ok("cores", detail)


def oom_kills(*, visible: bool, system: str) -> Finding | None:
    """Whether the kernel's OOM kills can be seen; None where there are no cgroups."""
    if system != "linux":
        return None
    if visible:
        return ok("oom kills", "the kernel's are seen: its cgroup counts them")
    return warning(
        "oom kills",
        "the kernel's are not seen: a killed trial counts as out of memory only near its limit",
        "Run it in a cgroup of its own: systemd-run --user --scope autofit tune FILE.yaml.",
    )


def limits(
    files: int | None, processes: int | None, address_bytes: int | None, group: tuple[int, int] | None
) -> Iterator[Finding]:
    """What this user's processes may have; None stands for no limit.

    Args:
        files: open files a process.
        processes: processes and threads of this user.
        address_bytes: address space a process.
        group: processes and threads in the cgroup, and its limit.
    """
    if files is not None and files < _FEW_FILES:
        yield warning("open files", f"{files} a process: workers and their queues may need more", "Run ulimit -n 4096.")
    if processes is not None and processes < _FEW_PROCESSES:
        yield warning(
            "processes",
            f"{processes} processes and threads, TensorFlow's own included",
            "Run ulimit -u 4096, or ask for it.",
        )
    if address_bytes is not None:
        yield warning(
            "address space",
            f"limited to {address_bytes // 2**20} MiB: CUDA reserves far more than it uses",
            "Run ulimit -v unlimited; host_memory limits what trials really use.",
        )
    if group is not None and group[1] - group[0] < _FEW_PROCESSES:
        yield warning(
            "processes",
            f"{group[0]} of {group[1]} that the cgroup allows are there, threads counted",
            "Start the container with docker run --pids-limit=4096.",
        )


def resource_limits() -> tuple[int | None, int | None, int | None]:
    """Open files, processes and address space that are allowed; None for no limit, or where the platform has none."""
    if sys.platform == "win32":
        return None, None, None
    import resource  # not on Windows

    found = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS)]
    files, processes, address = (None if soft == resource.RLIM_INFINITY else soft for soft in found)
    return files, processes, address
