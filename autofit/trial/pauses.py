"""Detect a trial that hangs: its processes use no CPU time and read no bytes for longer than expected.

The expected pause is learned from the trials that finished: data that waits for a network or a lock also pauses, longer for
larger batches. Before any trial has finished, only the deadline ends a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil

from autofit.machine import host
from autofit.records.trial import TrialSpec

_IDLE_CPU_SECONDS = 0.1  # in a pause: threads that wait with a timeout wake up now and then
_LEAST_SECONDS = 6.0  # of a hang
_PATIENCE_RATIO = 5.0  # of the longest pause of a trial that finished
_GAP_SECONDS = 2.0  # between two readings: the machine, or this process, was suspended


class Pauses:
    """The pauses of one process tree; `longest` is in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._taken: dict[int, tuple[float, int]] = {}
        self._cpu_seconds = 0.0
        self._began: float | None = None
        self._read_at = -math.inf

    def read(self, tree: Sequence[psutil.Process], now: float) -> float:
        """Read all processes; returns the duration of the present pause in seconds.

        Args:
            tree: the processes.
            now: seconds of a monotonic clock.
        """
        bytes_read = 0
        for process in tree:
            cpu_before, bytes_before = self._taken.get(process.pid, (0.0, 0))
            try:
                cpu, size = _cpu_seconds(process), host.bytes_read(process) or 0
            except psutil.Error:
                continue
            self._taken[process.pid] = cpu, size
            self._cpu_seconds += max(0.0, cpu - cpu_before)
            bytes_read += max(0, size - bytes_before)
        if (
            self._began is None
            or self._cpu_seconds >= _IDLE_CPU_SECONDS
            or bytes_read
            or now - self._read_at > _GAP_SECONDS
        ):
            self._began, self._cpu_seconds = now, 0.0
        self._read_at = now
        self.longest = max(self.longest, now - self._began)
        return now - self._began


class Patience:
    """How long a trial may pause, learned from those that finished."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, int]] = []  # the longest pause of a trial in seconds, and its batch size

    def learn(self, spec: TrialSpec, longest_pause: float) -> None:
        """Learn the longest pause, in seconds, of a trial that finished."""
        self._pauses.append((longest_pause, spec.config.batch_size or 1))

    def seconds(self, spec: TrialSpec) -> float:
        """The pause in seconds after which this trial hangs; infinite before any trial has finished."""
        if not self._pauses:
            return math.inf
        batch = spec.config.batch_size or 1
        longest = max(seconds * max(1.0, batch / finished_batch) for seconds, finished_batch in self._pauses)
        return max(_LEAST_SECONDS, _PATIENCE_RATIO * longest)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
