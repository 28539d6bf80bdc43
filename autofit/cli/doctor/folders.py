"""The folders that autofit writes to: room, rights, and what file system they are on."""

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
_LITTLE_TEMPORARY_BYTES, _LITTLE_STORAGE_BYTES = 2**30, 100 * 2**20
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Folder:
    """A folder, or the nearest one above that is there; `file_system` is empty where it is not known."""

    path: Path
    writable: bool
    free_bytes: int
    file_system: str


def read(path: Path) -> Folder:
    """Look at a folder; where it is not there yet, at the nearest above, in which it would be made."""
    # Path.is_dir raises where a folder above may not be entered
    there = next(folder for folder in (path, *path.parents) if os.path.isdir(folder))  # noqa: PTH112
    usable = os.access(there, os.W_OK | os.X_OK)
    return Folder(path, usable, shutil.disk_usage(there).free, _file_system(there.resolve()))


def temporary() -> Folder | None:
    """The folder for temporary files; None where there is none that can be written."""
    try:
        return read(Path(tempfile.gettempdir()))
    except FileNotFoundError:
        return None


def check_temporary(folder: Folder | None) -> Finding:
    """Whether arrays can be written for the trials to map."""
    elsewhere = "Run export TMPDIR= with a folder on a disk that has more room, /var/tmp for example."
    if folder is None or not folder.writable:
        return problem("temporary files", f"{folder.path if folder else 'no folder'} cannot be written", elsewhere)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LITTLE_TEMPORARY_BYTES:
        return warning("temporary files", f"{detail}: arrays are written there for the trials", elsewhere)
    if folder.file_system in _IN_RAM:
        return warning("temporary files", f"{detail}, which is in RAM: arrays given to tune take host memory", elsewhere)
    return ok("temporary files", detail)


def check_storage(folder: Folder) -> Finding:
    """Whether trials can be stored by default."""
    elsewhere = "Name a file elsewhere: autofit tune --storage FILE.sqlite3."
    if not folder.writable:
        return problem("storage", f"{folder.path} cannot be written, so that no trial can be stored", elsewhere)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LITTLE_STORAGE_BYTES:
        return warning("storage", detail, elsewhere)
    if folder.file_system in _NETWORK:
        return warning("storage", f"{detail}, on {folder.file_system}: SQLite's locks do not hold on a network", elsewhere)
    return ok("storage", detail)


def folder_of(storage: str) -> Path:
    """The folder of an SQLite file, by its URL."""
    return Path(storage.removeprefix(_SQLITE)).parent


def _file_system(path: Path) -> str:
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
