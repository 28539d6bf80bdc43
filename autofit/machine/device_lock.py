"""Locks on devices: one autofit process at a time measures on a device, and the others wait.

Two tunes on one device would distort each other's rates and compete for memory. The lock of a device is a file that the
kernel unlocks when its holder ends, for whatever reason (flock(2)). The lock covers all programs on this machine that share
a folder for temporary files; each container has its own folder and locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from autofit.records.machine import Placement
from autofit.records.units import printable

_CPU = "cpu"  # one lock for all logical devices of the CPU
_PERMISSIONS = 0o666  # each user of the machine may lock the same file
_NOTE_CHARACTERS = 200  # read of a holder's note, because another user's program may have written it


class DeviceLock(contextlib.AbstractContextManager["DeviceLock"]):
    """The locks of all devices of a placement; as a context manager, it releases them at the end of the block.

    `purpose` says what the holder measures; processes that wait show it.
    """

    def __init__(self, placement: Placement, purpose: str) -> None:
        names = sorted(gpu.uuid for gpu in placement.gpus) or [_CPU]  # every process locks in the same order
        self._paths = [Path(tempfile.gettempdir()) / f"autofit-{name}.lock" for name in names]
        self._purpose = purpose
        self._awaited = self._paths[0]
        self._files: dict[Path, int] = {}

    def __exit__(self, *error: object) -> None:
        self.release()

    def acquire(self) -> bool:
        """Acquire all locks without waiting. If one is held, acquire none; return False. Without locking, return True."""
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
                with contextlib.suppress(OSError):  # another user's file may be read-only
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
        for path, file in self._files.items():
            with contextlib.suppress(OSError):  # another user's file may not be removable
                path.unlink()
            os.close(file)
        self._files.clear()


def _locked(path: Path) -> int | None:
    """Return a locked file; None if locking is unavailable. Raise BlockingIOError if another process holds the lock."""
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
    """Open a lock file, creating it if it does not exist, and return its descriptor; None if that is not allowed."""
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        try:
            file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _PERMISSIONS)
        except OSError:
            continue
        if flags & os.O_CREAT:
            os.fchmod(file, _PERMISSIONS)
        return file
    return None
