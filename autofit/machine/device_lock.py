"""A lock on devices, so that one autofit at a time measures there; a second one waits.

Two tunes on one device falsify each other's rates and take each other's memory. The lock of a device is a file, which the
kernel unlocks when its holder ends for whatever reason (flock(2)). It covers all programs of this machine that share a
folder for temporary files; other containers have their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType

from autofit.records.machine import Placement
from autofit.records.units import printable

_CPU = "cpu"  # one lock for all logical devices of the CPU
_PERMISSIONS = 0o666  # each user of the machine may wait for every other
_NOTE_CHARACTERS = 200  # of a holder's note, which another user's program may have written


class DeviceLock:
    """The locks of all devices of a placement; a context that releases them.

    Args:
        placement: the devices.
        purpose: what the holder measures, shown to those who wait.
    """

    def __init__(self, placement: Placement, purpose: str) -> None:
        names = sorted(gpu.uuid for gpu in placement.gpus) or [_CPU]  # in the same order in every process
        self._paths = [Path(tempfile.gettempdir()) / f"autofit-{name}.lock" for name in names]
        self._purpose = purpose
        self._awaited = self._paths[0]
        self._files: dict[Path, int] = {}

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def acquire(self) -> bool:
        """Acquire all locks or none without waiting; True if locking is unavailable."""
        for path in self._paths:
            try:
                file = _locked(path)
            except BlockingIOError:
                self._awaited = path
                self.release()
                return False
            if file is not None:
                self._files[path] = file
                note = f"pid {os.getpid()}, {self._purpose}, since {time.strftime('%H:%M')}"
                with contextlib.suppress(OSError):  # another user's file may be read only
                    os.ftruncate(file, 0)
                    os.pwrite(file, note.encode(errors="replace"), 0)
        return True

    def holder(self) -> str:
        """Describe the holder of the lock that could not be acquired."""
        try:
            with self._awaited.open(errors="replace") as file:
                note = file.read(_NOTE_CHARACTERS)
        except OSError:
            note = ""
        return printable(note.partition("\n")[0]) or "another process"

    def release(self) -> None:
        """Release the locks that are held."""
        for path, file in self._files.items():
            with contextlib.suppress(OSError):  # another user's file stays
                path.unlink()
            os.close(file)
        self._files.clear()


def _locked(path: Path) -> int | None:
    """Open and lock a file; None if it can be neither opened nor created, or its file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    while (file := _opened(path)) is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == path.stat().st_ino:
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            os.close(file)
            return None
        os.close(file)
        if path.exists():
            raise BlockingIOError(f"{path} is locked")
        # the holder has just removed the file: create a new one
    return None


def _opened(path: Path) -> int | None:
    """Open the file of a lock, creating it if it does not exist; None if that is not allowed."""
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        try:
            file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _PERMISSIONS)
        except OSError:
            continue
        if flags & os.O_CREAT:
            os.fchmod(file, _PERMISSIONS)
        return file
    return None
