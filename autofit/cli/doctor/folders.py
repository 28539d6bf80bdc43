"""Checks of temporary files and storages: free space, permissions, file system, database and lock."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.errors import StorageError
from autofit.records.units import format_bytes
from autofit.storage import urls

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
    """Read the folder for temporary files; None if no folder is writable."""
    try:
        return read(Path(tempfile.gettempdir()))
    except FileNotFoundError:
        return None


def temporary_files(folder: Folder | None) -> Finding:
    """Check that arrays can be written for trials to map."""
    remedy = "Run export TMPDIR=FOLDER with a folder on a larger disk, for example /var/tmp."
    if folder is None or not folder.writable:
        return problem("temporary files", f"{folder.path if folder else 'no folder'} cannot be written", remedy)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_TEMPORARY_BYTES:
        return warning("temporary files", f"{detail}: autofit writes arrays there for the trials", remedy)
    if folder.file_system in _IN_RAM:
        return warning("temporary files", f"{detail} in RAM: arrays passed to tune take host memory", remedy)
    return ok("temporary files", detail)


def storage(folder: Folder) -> Finding:
    """Check that an SQLite file in the folder can store trials."""
    remedy = "Store trials elsewhere: autofit tune --storage FILE.sqlite3."
    if not folder.writable:
        return problem("storage", f"{folder.path} cannot be written: no trial can be stored", remedy)
    detail = f"{format_bytes(folder.free_bytes)} free in {folder.path}"
    if folder.free_bytes < _LEAST_STORAGE_BYTES:
        return warning("storage", detail, remedy)
    if folder.file_system in _NETWORK:
        return warning("storage", f"{detail} on {folder.file_system}: SQLite cannot lock files on a network", remedy)
    return ok("storage", detail)


def storage_at(storage_url: str) -> Finding:
    """Check a storage by its URL or the path of an SQLite file: its folder, its server, or the lock of its journal."""
    url = urls.url_of(storage_url)
    file = urls.file_of(url)
    if file is None:
        return _server(storage_url)
    folder = read(file.parent)
    return _journal(folder) if url.startswith(urls.JOURNAL) else storage(folder)


def _server(url: str) -> Finding:
    from autofit.storage.connection import open_storage  # late: loads Optuna

    try:
        open_storage(url)
    except StorageError as error:
        return problem("storage", str(error), "Correct the URL, or start its server.")
    return ok("storage", f"{urls.shown(url)} answers")


def _journal(folder: Folder) -> Finding:
    """Check that processes that lock a journal in the folder take turns."""
    from autofit.storage.journal_lock import PROCESSES, turns_of  # late: loads Optuna

    place = f"{folder.path} ({folder.file_system})" if folder.file_system else str(folder.path)
    remedy = "Store trials in PostgreSQL: autofit sweep --storage postgresql://USER@HOST/DATABASE."
    try:
        turns, counted = turns_of(folder.path)
    except OSError as error:
        return problem("storage", f"a journal in {place} cannot be locked: {error}", remedy)
    if counted != turns:
        lost = f"{turns - counted} of {turns} turns were lost"
        return problem("storage", f"{lost} in {place}: two processes held the lock of a journal at once", remedy)
    return ok("storage", f"{PROCESSES} processes took {turns} turns with a journal in {place}")


def _file_system(path: Path) -> str:
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
