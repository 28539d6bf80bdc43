"""One measurement a device: a lock for which a second tune waits.

Two tunes on one device falsify each other's rates and take each other's memory. The lock is a file that the kernel unlocks
when its holder ends, however it ends (flock(2)). It is seen by all programs of this machine that share a folder for
temporary files; other containers have their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType

from autofit.records.machine import Device, Placement
from autofit.records.units import printable

_CPU = "cpu"
_PERMISSIONS = 0o666  # every user of the machine may wait for every other
_NOTE_CHARACTERS = 200  # of a holder's note, which another user's program may have written


class PlacementLock:
    """The locks of all devices of a placement, not taken yet; usable as a context, which releases them.

    They are taken in the same order everywhere, and all or none.

    Args:
        placement: the devices; the logical ones of a CPU are one.
        purpose: what the holder measures, for those who wait.
    """

    def __init__(self, placement: Placement, purpose: str) -> None:
        gpus = sorted(placement.gpus, key=lambda gpu: gpu.uuid)
        self._locks = [DeviceLock(device, purpose) for device in gpus or (None,)]
        self._refused: DeviceLock | None = None

    def __enter__(self) -> PlacementLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def acquire(self) -> bool:
        """Take all locks if nobody has one of them."""
        self._refused = next((lock for lock in self._locks if not lock.acquire()), None)
        if self._refused is not None:
            self.release()
        return self._refused is None

    def holder(self) -> str:
        """Who holds the lock that was refused, for people."""
        return (self._refused or self._locks[0]).holder()

    def release(self) -> None:
        """Let the next one take them."""
        for lock in self._locks:
            lock.release()


class DeviceLock:
    """The lock of one device, not taken yet; usable as a context, which releases it.

    Args:
        device: the accelerator, None for the CPU.
        purpose: what the holder measures, for those who wait.
    """

    def __init__(self, device: Device | None, purpose: str) -> None:
        self._path = Path(tempfile.gettempdir()) / f"autofit-{device.uuid if device else _CPU}.lock"
        self._purpose = purpose
        self._file: int | None = None

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def acquire(self) -> bool:
        """Take the lock if nobody has it; True where no file can be made for it, as everybody then does without."""
        file = _opened(self._path)
        while file is not None and not _is_locked(file, self._path):
            os.close(file)
            if self._path.exists():
                return False
            file = _opened(self._path)  # its holder has removed it
        if file is None:
            return True
        self._file = file
        note = f"pid {os.getpid()}, {self._purpose}, since {time.strftime('%H:%M')}"
        with contextlib.suppress(OSError):  # another user's file may be read only
            os.ftruncate(file, 0)
            os.pwrite(file, note.encode(errors="replace"), 0)
        return True

    def holder(self) -> str:
        """Who holds the lock, for people."""
        try:
            with self._path.open(errors="replace") as file:
                note = file.read(_NOTE_CHARACTERS)
        except OSError:
            note = ""
        return printable(note.partition("\n")[0]) or "another process"

    def release(self) -> None:
        """Let the next one take it; nothing where it is not held."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # another user's file stays
                self._path.unlink()
            os.close(self._file)
            self._file = None


def _is_locked(file: int, path: Path) -> bool:
    """Lock an open file; False where somebody else has locked it, or has removed it meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file).st_ino == path.stat().st_ino
    except OSError:
        return False


def _opened(path: Path) -> int | None:
    """Open the file of a lock, which is made if there is none; None where that is not allowed."""
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        try:
            file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _PERMISSIONS)
        except OSError:
            continue
        if flags & os.O_CREAT:
            os.fchmod(file, _PERMISSIONS)
        return file
    return None
