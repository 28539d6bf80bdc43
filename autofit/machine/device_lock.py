"""Locks on devices: one autofit process at a time measures on a device, and the others wait."""

# Two tunes on one device would distort each other's rates and compete for memory. The lock of a
# device is a file that the kernel unlocks when its holder ends, for whatever reason (flock(2)). The
# lock covers all programs on this machine that share a folder for temporary files; each container
# has its own folder and locks.

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from autofit.errors import DeviceBusyError
from autofit.machine.host import temporary_folder
from autofit.records.machine import Placement
from autofit.records.units import printable

# each user of the machine may lock the same file
_PERMISSIONS = 0o666
# read of a holder's note, because another user's program may have written it
_NOTE_CHARACTERS = 200


class DeviceLock(contextlib.ExitStack):
    """The locks of all devices of a placement.

    As a context manager, it releases them at the end of the block.

    `purpose` says what the holder measures; processes that wait show it.
    """

    def __init__(self, placement: Placement, purpose: str) -> None:
        super().__init__()
        # every process locks in the same order; all logical devices of the CPU have one lock
        names = sorted(gpu.uuid for gpu in placement.gpus) or ["cpu"]
        self._paths = [temporary_folder() / f"autofit-{name}.lock" for name in names]
        self._device = placement.name
        self._purpose = purpose
        self._awaited = self._paths[0]

    def acquire(self) -> bool:
        """Acquire all locks without waiting.

        If one is held, acquire none; return False. Without locking, return True.
        """
        note = f"pid {os.getpid()}, {self._purpose}, since {time.strftime('%H:%M')}"
        for path in self._paths:
            file = _open(path)
            if file is None:
                continue
            # The files stay: a process that has just opened one that its holder then removes would
            # lock what nobody finds.
            self.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._awaited = path
                self.close()
                return False
            except OSError:  # a file system without locks
                continue
            with contextlib.suppress(OSError):  # a full disk
                os.ftruncate(file, 0)
                os.pwrite(file, note.encode(errors="replace"), 0)
        return True

    def holder(self) -> str:
        """Describe the holder of the lock that could not be acquired."""
        note = ""
        with contextlib.suppress(OSError), self._awaited.open(errors="replace") as file:
            note = file.read(_NOTE_CHARACTERS)
        return printable(note.partition("\n")[0]) or "another process"

    def busy_error(self) -> DeviceBusyError:
        """Return the error for a lock that could not be acquired and is not waited for."""
        return DeviceBusyError(
            f"another autofit is measuring on the {self._device} ({self.holder()}); running both "
            "would make both measurements wrong. Wait for it (--wait, the default), end it, or "
            "choose another device"
        )


def _open(path: Path) -> int | None:
    # Returns None if that is not allowed. In a folder with the sticky bit, O_CREAT may be refused
    # for a file of another user that exists (sysctl fs.protected_regular), so it comes second. If
    # another process creates the file in between, the third opens it.
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        with contextlib.suppress(OSError):
            file = os.open(path, flags | os.O_NOFOLLOW, _PERMISSIONS)
            if flags & os.O_CREAT:
                os.fchmod(file, _PERMISSIONS)
            return file
    return None
