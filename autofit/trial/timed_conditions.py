"""Gather the conditions in which a trial's rate is timed: other work on the cores, and the GPU's clock."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from autofit.machine import host, load, nvml
from autofit.records.conditions import Conditions
from autofit.records.machine import Device


class TimedConditions:
    """The conditions of the timed part of one trial."""

    def __init__(self) -> None:
        self._before: load.CoreSeconds | None = None
        self._seconds = self._other = self._idle = 0.0
        self._clocks: list[int] = []
        self._throttles: set[str] = set()

    def read(self, tree: Sequence[psutil.Process], *, is_timed: bool) -> None:
        """Read the cores; the time since the last reading counts if it was timed."""
        after, before = load.CoreSeconds.read(tree), self._before
        self._before = after
        if before is None or not is_timed:
            return
        seconds = after.at - before.at
        other, idle = load.other_and_idle_cores(before, after)
        self._seconds += seconds
        self._other += other * seconds
        self._idle += idle * seconds

    def read_device(self, device: Device) -> None:
        """Read a GPU's clock while the rate is timed."""
        with nvml.opened() as available:
            if not available:
                return
            clock = nvml.clock_mhz(device)
            self._clocks += [] if clock is None else [clock]
            self._throttles |= nvml.throttles(device)

    def conditions(self) -> Conditions | None:
        """The means so far; None if nothing was timed."""
        if not self._seconds:
            return None
        clock = round(sum(self._clocks) / len(self._clocks)) if self._clocks else None
        return Conditions(
            cores=host.visible_cores(),
            other_cores=self._other / self._seconds,
            idle_cores=self._idle / self._seconds,
            clock_mhz=clock,
            throttles=tuple(sorted(self._throttles)),
        )
