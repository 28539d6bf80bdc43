"""Checks of the folders that autofit writes to: free space, permissions and file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.records.units import format_bytes

_IN_RAM = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "beegfs", "gpfs", "fuse.sshfs")
_LEAST_TEMPORARY_BYTES = 2**30  # arrays in memory are often this large
_LEAST_STORAGE_BYTES = 100 * 2**20  # hundreds of studies


@dataclass(frozen=True)
class Folder:
    """Readings of a folder; `file_system` is empty if it is unknown."""

    path: Path
    writable: bool
    free_bytes: int
    file_system: str


def read(path: Path) -> Folder:
    """Read a folder; if it does not exist, the nearest existing parent, in which it would be created."""
    # Path.is_dir raises if a parent may not be entered
    existing = next(folder for folder in (path, *path.parents) if os.path.isdir(folder))  # noqa: PTH112
    writable = os.access(existing, os.W_OK | os.X_OK)
    return Folder(path, writable, shutil.disk_usage(existing).free, _file_system(existing.resolve()))


def read_temporary() -> Folder | None:
    """The folder for temporary files; None if none is writable."""
    try:
        return read(Path(tempfile.gettempdir()))
    except FileNotFoundError:
        return None


def temporary_files(folder: Folder | None) -> Finding:
    """Check that arrays can be written for trials to map."""
    elsewhere = "Run export TMPDIR=FOLDER with a folder on a larger disk, for example /var/tmp."
    if folder is None or not folder.writable:
        return problem("temporary files", f"{folder.path if folder else 'no folder'} cannot be written", elsewhere)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_TEMPORARY_BYTES:
        return warning("temporary files", f"{detail}: autofit writes arrays there for the trials", elsewhere)
    if folder.file_system in _IN_RAM:
        return warning("temporary files", f"{detail} in RAM: arrays passed to tune take host memory", elsewhere)
    return ok("temporary files", detail)


def storage(folder: Folder) -> Finding:
    """Check that trials can be stored in the default storage."""
    elsewhere = "Store trials elsewhere: autofit tune --storage FILE.sqlite3."
    if not folder.writable:
        return problem("storage", f"{folder.path} cannot be written: no trial can be stored", elsewhere)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_STORAGE_BYTES:
        return warning("storage", detail, elsewhere)
    if folder.file_system in _NETWORK:
        return warning("storage", f"{detail} on {folder.file_system}: SQLite cannot lock files on a network", elsewhere)
    return ok("storage", detail)


def _file_system(path: Path) -> str:
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
