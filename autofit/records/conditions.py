"""Conditions under which a rate was timed: other work on the machine, and the GPU's clock."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.bounds import Count, Positive, Ratio

BUSY_SHARE = 0.1
"""Share of the cores above which other processes affect a rate (measured: 0.01 to 0.05 on idle machines)."""

_IDLE_SHARE = 0.25  # of the cores: while this share is idle, no process waits for a core


@dataclass(frozen=True)
class Conditions:
    """Conditions while a rate was timed, as means over that time; None if the system or the driver reports no figure.

    `cores` are those that this process may use, `other_cores` the number of them that other processes used, including the
    host of a virtual machine, and `idle_cores` the number that nothing used. `clock_mhz` is the clock of a GPU's
    multiprocessors, and `throttles` are the reasons why it was not higher.
    """

    cores: Positive
    other_cores: Ratio | None = None
    idle_cores: Ratio | None = None
    clock_mhz: Count | None = None
    throttles: tuple[str, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used cores that the trial or its input pipeline may have waited for."""
        if self.other_cores is None or self.idle_cores is None:
            return False
        return self.other_cores >= BUSY_SHARE * self.cores and self.idle_cores < _IDLE_SHARE * self.cores

    @property
    def other_work(self) -> str:
        """A description of the other work."""
        return f"other processes used {self.other_cores or 0:.1f} of {self.cores} cores"
