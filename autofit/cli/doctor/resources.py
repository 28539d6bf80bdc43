"""Checks of the machine: GPUs, memory, /dev/shm, CPU cores, temporary files and storages."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.cli.findings import Finding, ok, problem, warning
from autofit.errors import StorageError
from autofit.machine.gpus import UnreadDevice
from autofit.records.machine import Device, Machine
from autofit.records.units import counted, format_bytes
from autofit.storage import urls

_BUS_ORDER = "PCI_BUS_ID"
_LEAST_GPU_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB
_LEAST_BYTES = 2**30  # a process that has imported TensorFlow and builds a model takes about half of this
_NCCL_BYTES = 2**27  # for each GPU; Docker's default of 64 MiB in all is too little (NVIDIA's NCCL guide: troubleshooting)
_LEAST_SHARED_BYTES = 2**20  # locks and semaphores of worker processes take some KiB
_IN_RAM = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "beegfs", "gpfs", "fuse.sshfs")
_LEAST_TEMPORARY_BYTES = 2**30  # arrays passed to tune are often this large
_LEAST_STORAGE_BYTES = 100 * 2**20  # enough for hundreds of studies


def gpus(
    visible: Sequence[Device | UnreadDevice],
    installed: Sequence[Device | UnreadDevice],
    unusable: str | None,
    environment: Mapping[str, str],
) -> Iterator[Finding]:
    """Check which GPUs can be used, and how much of their memory is free.

    `visible` are those `installed` GPUs that CUDA_VISIBLE_DEVICES selects. `unusable` is the reason why a GPU that is
    present and not hidden cannot be used, or None.
    """
    selection = environment.get("CUDA_VISIBLE_DEVICES", "")
    usable = any(isinstance(device, Device) for device in visible)
    if unusable is not None and not usable:
        yield problem("gpu", unusable, "Make nvidia-smi show the GPU and its memory, or set device: cpu.")
    elif not installed:
        yield ok("gpu", "the NVIDIA driver reports no GPU: trials run on the CPU")
    elif not visible:
        hidden = f"CUDA_VISIBLE_DEVICES={selection} hides {counted(len(installed), 'GPU')}: trials run on the CPU"
        yield warning("gpu", hidden, "Run unset CUDA_VISIBLE_DEVICES.")
    numbers = any(entry.strip().isdigit() for entry in selection.split(","))
    if numbers and len({device.name for device in installed}) > 1 and environment.get("CUDA_DEVICE_ORDER") != _BUS_ORDER:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={selection} is ambiguous: CUDA counts GPUs from the fastest, the driver by PCI bus",
            f"Run export CUDA_DEVICE_ORDER={_BUS_ORDER}, or name GPUs by UUID (nvidia-smi -L).",
        )
    for device in visible:
        if isinstance(device, Device):
            yield _gpu_memory(device)
        elif usable:
            detail = f"{device.name} is not used: the driver reports {device.problem!r} instead of its memory"
            yield warning(f"gpu:{device.index}", detail, "Make nvidia-smi show its memory, or set device: gpu:N.")


def _gpu_memory(device: Device) -> Finding:
    subject = f"gpu:{device.index}"
    detail = f"{device.name}, {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
    detail += f"; {', '.join(device.held_by)}" if device.held_by else ""
    end = "End these processes" if device.held_by else "End the processes that nvidia-smi lists"
    if device.free_bytes < _LEAST_GPU_BYTES:
        return problem(subject, detail, f"{end}, or select another GPU with device: gpu:N.")
    if device.free_bytes < device.total_bytes / 2:
        return warning(subject, detail, f"{end}, because device_memory is a share of the free memory.")
    return ok(subject, detail)


def memory(machine: Machine, total_bytes: int) -> Finding:
    """Check how much host memory is available; `total_bytes` is the machine's memory without a cgroup's limit."""
    limited = machine.memory_bytes < total_bytes
    detail = f"{format_bytes(machine.available_bytes)} of {format_bytes(machine.memory_bytes)} available"
    detail += f" (limit of the cgroup; the machine has {format_bytes(total_bytes)})" if limited else ""
    if machine.available_bytes >= max(machine.memory_bytes / 2, _LEAST_BYTES):
        return ok("host memory", detail)
    remedy = "End other processes" + (", or raise the container's limit (docker run --memory)" if limited else "")
    if machine.available_bytes < _LEAST_BYTES:
        return problem("host memory", detail, f"{remedy}: a trial's process alone takes half a GiB.")
    return warning("host memory", detail, f"{remedy}: trials can use only the available memory.")


def shared_memory(size_bytes: int, free_bytes: int, gpus: int) -> Finding:
    """Check /dev/shm, which holds the locks and shared memory of worker processes; its size is 0 if it is missing.

    With several GPUs, NCCL exchanges gradients through it.
    """
    remedy = "Start the container with docker run --shm-size=2g, or run mount -o remount,size=2g /dev/shm."
    if not size_bytes:
        return problem("/dev/shm", "missing: worker processes cannot create their locks", remedy)
    detail = f"{format_bytes(free_bytes)} of {format_bytes(size_bytes)} free"
    if free_bytes < _LEAST_SHARED_BYTES:
        return problem("/dev/shm", f"{detail}: worker processes crash when they share memory", remedy)
    if gpus > 1 and free_bytes < gpus * _NCCL_BYTES:
        return warning("/dev/shm", f"{detail}: a training on {gpus} GPUs may fail in NCCL", remedy)
    return ok("/dev/shm", detail)


def cores(visible: int, quota: float | None) -> Finding:
    """Check that the cgroup's CPU quota, in cores, allows a thread on each core that this process may run on."""
    if quota is None or quota >= visible:
        return ok("cores", f"{visible}")
    threads = max(1, math.floor(quota))
    return warning(
        "cores",
        f"{visible}, but the cgroup's quota is {quota:.3g} cores: TensorFlow starts {counted(visible, 'thread')}, and the "
        "kernel stops all of them when the quota is used up",
        f"Use docker run --cpuset-cpus instead of --cpus, or export TF_NUM_INTRAOP_THREADS={threads}.",
    )


@dataclass(frozen=True)
class Folder:
    """Properties of a folder; `file_system` is empty if the file system is unknown."""

    path: Path
    writable: bool
    free_bytes: int
    file_system: str


def read_folder(path: Path) -> Folder:
    """Return the properties of a folder, or of its nearest existing parent if the folder does not exist yet."""
    # Path.is_dir raises if this process may not enter a parent
    existing = next(folder for folder in (path, *path.parents) if os.path.isdir(folder))  # noqa: PTH112
    writable = os.access(existing, os.W_OK | os.X_OK)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if existing.resolve().is_relative_to(mount.mountpoint)]
    innermost = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return Folder(path, writable, shutil.disk_usage(existing).free, innermost.fstype if innermost else "")


def temporary_files() -> Finding:
    """Check that arrays can be written to temporary files, which trials map into memory."""
    remedy = "Run export TMPDIR=FOLDER with a folder on a larger disk, for example /var/tmp."
    try:
        folder = read_folder(Path(tempfile.gettempdir()))  # tempfile has written a file there
    except FileNotFoundError:
        return problem("temporary files", "no folder is writable", remedy)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_TEMPORARY_BYTES:
        return warning("temporary files", f"{detail}: autofit writes arrays for the trials there", remedy)
    if folder.file_system in _IN_RAM:
        return warning("temporary files", f"{detail} in RAM: arrays passed to tune take host memory", remedy)
    return ok("temporary files", detail)


def storage(folder: Folder) -> Finding:
    """Check that an SQLite file in the folder can store trials."""
    remedy = "Store trials elsewhere: autofit tune --storage FILE.sqlite3."
    if not folder.writable:
        return problem("storage", f"{folder.path} is not writable: trials cannot be stored", remedy)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_STORAGE_BYTES:
        return warning("storage", detail, remedy)
    if folder.file_system in _NETWORK:
        return warning(
            "storage", f"{detail} on {folder.file_system}: SQLite cannot lock files on a network file system", remedy
        )
    return ok("storage", detail)


def storage_at(storage_url: str) -> Finding:
    """Check the storage at a URL or the path of an SQLite file: its folder, its server, or the lock of its journal."""
    url = urls.url_of(storage_url)
    file = urls.file_of(url)
    if file is not None:
        folder = read_folder(file.parent)
        return _journal(folder) if url.startswith(urls.JOURNAL) else storage(folder)
    from autofit.storage.connection import open_storage  # imported late, because it loads Optuna

    try:
        open_storage(storage_url)
    except StorageError as error:
        return problem("storage", str(error), "Correct the URL, or start the database server.")
    return ok("storage", f"{urls.shown(storage_url)} answers")


def _journal(folder: Folder) -> Finding:
    """Check that the lock of a journal, a symbolic link, can be made in the folder."""
    place = f"{folder.path} ({folder.file_system})" if folder.file_system else str(folder.path)
    remedy = "Store trials in PostgreSQL: autofit sweep --storage postgresql://USER@HOST/DATABASE."
    try:
        with tempfile.TemporaryDirectory(prefix="autofit-lock-", dir=folder.path) as temporary:
            Path(temporary, "lock").symlink_to(temporary)
    except OSError as error:
        return problem("storage", f"a journal in {place} cannot be locked: {error}", remedy)
    if folder.file_system in _NETWORK:
        detail = f"{place} is a network drive: one host cannot test whether the lock of a journal keeps other hosts out"
        return warning("storage", detail, remedy)
    return ok("storage", f"a journal can be locked in {place}")
