"""What went on beside a trial while its rate was timed."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.bounds import Count, Positive, Ratio

BUSY_SHARE = 0.1
"""Of the cores: what other processes take of them shows in a rate (idle machines: 0.01 to 0.05)."""

_IDLE_SHARE = 0.25  # of the cores: with so much idle, nobody waits for a core


@dataclass(frozen=True)
class Conditions:
    """Conditions while a rate was timed, means over that time.

    `cores` are those that this process may use; `other_cores` is how many of them other processes used, those of the host
    of a virtual machine included, and `idle_cores` how many nobody used. `clock_mhz` is the clock of a GPU's
    multiprocessors, `throttles` why it was lower than it could be. None where the system or the driver does not report a
    figure.
    """

    cores: Positive
    other_cores: Ratio | None = None
    idle_cores: Ratio | None = None
    clock_mhz: Count | None = None
    throttles: tuple[str, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took cores for which the trial, or its input pipeline, may have waited."""
        if self.other_cores is None or self.idle_cores is None:
            return False
        return self.other_cores >= BUSY_SHARE * self.cores and self.idle_cores < _IDLE_SHARE * self.cores

    @property
    def other_work(self) -> str:
        """The other work, for people."""
        return f"other processes used {self.other_cores or 0:.1f} of {self.cores} cores"
