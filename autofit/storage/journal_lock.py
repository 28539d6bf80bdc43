"""Test whether journal locks work in a folder: on some network drives, two writers can hold the lock at once."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

WRITERS = 2
_TURNS_SECONDS = 1.5  # long enough for hundreds of turns


def turns_of(folder: Path) -> tuple[int, int]:
    """Let writers increase a counter in turns, under the lock of a journal; return the number of turns and the count.

    The count is lower if two writers held the lock at once. They are threads, because the lock is a link in the file
    system, which treats threads and processes alike. Raise OSError if a journal cannot be locked in the folder.
    """
    with (
        tempfile.TemporaryDirectory(prefix="autofit-lock-", dir=folder) as temporary,
        ThreadPoolExecutor(WRITERS) as writers,
    ):
        counter = Path(temporary) / "counter"
        counter.touch()
        return sum(writers.map(_take_turns, [counter] * WRITERS)), len(counter.read_text())


def _take_turns(counter: Path) -> int:
    lock, turns = JournalFileSymlinkLock(str(counter)), 0
    ending = time.monotonic() + _TURNS_SECONDS
    while time.monotonic() < ending:
        lock.acquire()
        try:
            text = counter.read_text()
            time.sleep(0)  # let another writer run, if it also holds the lock
            with counter.open("w") as file:
                file.write(f"{text}+")
                file.flush()
                os.fsync(file.fileno())
        finally:
            lock.release()
        turns += 1
    return turns
