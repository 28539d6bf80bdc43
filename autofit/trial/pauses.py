"""Notice a trial that hangs: its processes take neither CPU time nor bytes from storage for long.

How long is long is learnt from the trials that finished: data that waits for a network or a lock pauses, too, and a larger
batch of it for longer. Before any has finished nothing is known, and only the deadline ends a trial.
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
        """Read the tree, all its processes; returns the seconds that the present pause has lasted.

        Args:
            tree: the processes.
            now: seconds, of a clock that never goes back.
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
    """How long a trial may pause, learnt from those that finished."""

    def __init__(self) -> None:
        self._known: list[tuple[float, int]] = []  # seconds of the longest pause of a trial, and its batch size

    def learn(self, spec: TrialSpec, longest_pause: float) -> None:
        """Take over the longest pause of a trial that finished, seconds."""
        self._known.append((longest_pause, spec.config.batch_size or 1))

    def seconds(self, spec: TrialSpec) -> float:
        """The seconds after which a pause of this trial is a hang; infinite before any trial has finished."""
        if not self._known:
            return math.inf
        batch = spec.config.batch_size or 1
        longest = max(seconds * max(1.0, batch / known_batch) for seconds, known_batch in self._known)
        return max(_LEAST_SECONDS, _PATIENCE_RATIO * longest)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
