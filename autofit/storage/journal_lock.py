"""Test whether journal locks work in a folder: on some network drives, two processes can hold the lock at once."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

PROCESSES = 2
_TURNS_SECONDS = 1.5  # long enough for each process to run
_SECONDS = 60.0  # longest time for both processes, on a slow drive


def turns_of(folder: Path) -> tuple[int, int]:
    """Let processes increase a counter in turns, under the lock of a journal; return the number of turns and the count.

    The count is lower if two processes held the lock at once.

    Raises:
        OSError: the folder is not writable, or the processes do not finish.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES)
    with (
        tempfile.TemporaryDirectory(prefix="autofit-lock-", dir=folder) as temporary,
        context.Pool(PROCESSES, initializer=start.wait) as processes,
    ):
        counter = Path(temporary) / "counter"
        counter.write_text("")
        try:
            turns = processes.map_async(take_turns, [counter] * PROCESSES, chunksize=1).get(_SECONDS)
        except multiprocessing.TimeoutError:
            raise OSError(f"two processes that took turns did not finish in {_SECONDS:.0f} s") from None
        return sum(turns), len(counter.read_text())


def take_turns(counter: Path) -> int:
    """Append a character to a file in each turn; return the number of turns."""
    lock, turns = JournalFileSymlinkLock(str(counter)), 0
    ending = time.monotonic() + _TURNS_SECONDS
    while time.monotonic() < ending:
        lock.acquire()
        try:
            text = counter.read_text()
            time.sleep(0)  # let another process run, if it also holds the lock
            with counter.open("w") as file:
                file.write(f"{text}+")
                file.flush()
                os.fsync(file.fileno())
        finally:
            lock.release()
        turns += 1
    return turns
