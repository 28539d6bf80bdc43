"""Test whether journal locks work in a folder: on some network drives, two processes can hold the lock at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

PROCESSES = 2
_TURNS_SECONDS = 1.5  # long enough for each process to run
_SECONDS = 60.0  # longest time for both processes, on a slow drive
_POLL_SECONDS = 0.01
_PROGRAM = "import sys; from autofit.storage.journal_lock import take_turns; take_turns(sys.argv[1])"


def turns_of(folder: Path) -> tuple[int, int]:
    """Let processes increase a counter in turns, under the lock of a journal; return the number of turns and the count.

    The count is lower if two processes held the lock at once.

    Raises:
        OSError: the folder is not writable, or the processes do not finish.
    """
    with tempfile.TemporaryDirectory(prefix="autofit-lock-", dir=folder) as temporary:
        counter = Path(temporary) / "counter"
        counter.write_text("")
        command = [sys.executable, "-c", _PROGRAM, str(counter)]
        with contextlib.ExitStack() as ending:
            running = []
            for _ in range(PROCESSES):
                running.append(ending.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
                ending.callback(running[-1].kill)  # runs before the context waits for the process
            try:
                errors = [process.communicate(timeout=_SECONDS)[1].strip().splitlines() for process in running]
            except subprocess.TimeoutExpired:
                raise OSError(f"two processes that took turns did not finish in {_SECONDS:.0f} s") from None
        for process, lines in zip(running, errors, strict=True):
            if process.returncode:
                raise OSError(lines[-1] if lines else f"a process ended with status {process.returncode}")
        return sum(int(file.read_text()) for file in counter.parent.glob("turns-*")), len(counter.read_text())


def take_turns(path: str) -> None:
    """Append a character to a file in each turn, once all processes have started, and save the number of turns."""
    folder, lock, turns = Path(path).parent, JournalFileSymlinkLock(path), 0
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < PROCESSES:  # the caller's timeout ends a loop that waits forever
        time.sleep(_POLL_SECONDS)
    ending = time.monotonic() + _TURNS_SECONDS
    while time.monotonic() < ending:
        lock.acquire()
        try:
            text = Path(path).read_text()
            time.sleep(0)  # let another process run, if it also holds the lock
            with open(path, "w") as file:
                file.write(f"{text}+")
                file.flush()
                os.fsync(file.fileno())
        finally:
            lock.release()
        turns += 1
    (folder / f"turns-{os.getpid()}").write_text(str(turns))
