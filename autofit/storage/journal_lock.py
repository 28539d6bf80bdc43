"""Whether the lock of a journal holds in a folder: on some network drives two processes get it at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

PROCESSES, TURNS = 2, 50
_SECONDS = 60.0  # for both processes, on a slow drive
_POLL_SECONDS = 0.01
_PROGRAM = "import sys; from autofit.storage.journal_lock import take_turns; take_turns(sys.argv[1])"


def turns_lost(folder: Path) -> int:
    """Let processes count in turns, each under the lock of a journal; returns how many of their turns another undid.

    Raises:
        OSError: the folder cannot be written, or the processes do not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="autofit-lock-", dir=folder) as temporary:
        counter = Path(temporary) / "counter"
        counter.write_text("0")
        command = [sys.executable, "-c", _PROGRAM, str(counter)]
        with contextlib.ExitStack() as ending:
            running = []
            for _ in range(PROCESSES):
                running.append(ending.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
                ending.callback(running[-1].kill)  # before its context waits for it
            try:
                errors = [process.communicate(timeout=_SECONDS)[1].strip().splitlines() for process in running]
            except subprocess.TimeoutExpired:
                raise OSError(f"two processes that take turns do not come to an end in {_SECONDS:.0f} s") from None
        for process, lines in zip(running, errors, strict=True):
            if process.returncode:
                raise OSError(lines[-1] if lines else f"a process ended with status {process.returncode}")
        return PROCESSES * TURNS - int(counter.read_text())


def take_turns(path: str) -> None:
    """Add one to the number in a file, so many times, once all processes are there."""
    Path(path).with_name(f"ready-{os.getpid()}").touch()
    while len(list(Path(path).parent.glob("ready-*"))) < PROCESSES:  # which the caller gives up waiting for
        time.sleep(_POLL_SECONDS)
    lock = JournalFileSymlinkLock(path)
    for _ in range(TURNS):
        lock.acquire()
        try:
            with open(path, "r+") as file:
                count = int(file.read())
                file.seek(0)
                file.write(str(count + 1))
                file.flush()
                os.fsync(file.fileno())
        finally:
            lock.release()
