"""How fast a run reads from storage, in this process and its workers."""

from __future__ import annotations

import time

import psutil

from autofit.machine import host


class StorageMeter:
    """Measures how fast a run reads from storage."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._started = 0.0

    def start(self) -> None:
        """Begin a run."""
        self._before, self._started = _storage_bytes(), time.perf_counter()

    def bytes_per_second(self) -> float | None:
        """Bytes per second read from storage since the start; None if that is not reported."""
        after = _storage_bytes()
        if self._before is None or after is None:
            return None
        return max(0, after - self._before) / (time.perf_counter() - self._started)


def _storage_bytes() -> int | None:
    """Bytes that this process and its workers have read from storage, without the page cache; None if not reported."""
    process = psutil.Process()
    readings = [_bytes_read_by(member) for member in (process, *process.children(recursive=True))]
    return None if None in readings else sum(reading or 0 for reading in readings)


def _bytes_read_by(process: psutil.Process) -> int | None:
    """Bytes that a process has read; 0 if it has ended, since its parent then counts them; None if not reported."""
    try:
        return host.bytes_read(process)
    except psutil.NoSuchProcess:
        return 0
