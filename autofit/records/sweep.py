"""Sweeps: the cells of a matrix and their tunes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.records.bounds import Seconds
from autofit.records.machine import Machine
from autofit.records.result import RESULT_VERSION, FailedTune, TuneRecord
from autofit.records.states import Text


class CellOutcome(Text):
    """How a cell of a sweep ended."""

    OK = "ok"
    DOES_NOT_FIT = "does not fit"
    FAILED = "failed"
    WAITING = "waiting"


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep: its values by axis, and its tune.

    An axis is a dotted argument of `tune`, such as `model_kwargs.width`; arguments joined by commas take the same value.
    `tune` is None until the tune ends; it stays None if the tune leaves no record. `problem` is the error of a tune without
    a result. `host` is the name of the host that tuned the cell.

    Example:
        >>> autofit.Cell({"model_kwargs.width": 8}).outcome.value
        'waiting'
    """

    values: Mapping[str, Any]
    tune: TuneRecord | FailedTune | None = None
    problem: str = ""
    host: str = ""

    @property
    def outcome(self) -> CellOutcome:
        """How the tune of this cell ended; WAITING if it has not ended yet."""
        if isinstance(self.tune, TuneRecord):
            return CellOutcome.OK
        if self.tune is None:
            return CellOutcome.FAILED if self.problem else CellOutcome.WAITING
        return CellOutcome.DOES_NOT_FIT if self.tune.memory else CellOutcome.FAILED

    @property
    def result(self) -> TuneRecord | None:
        """The record of the tune; None if it has no result."""
        return self.tune if isinstance(self.tune, TuneRecord) else None

    @property
    def problem_line(self) -> str:
        """The first and the last line of the problem, without the traceback between them."""
        lines = self.problem.strip().splitlines()
        return " ".join(dict.fromkeys(line.strip() for line in (lines[:1] + lines[-1:])))


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A sweep: one tune for each cell of a matrix, in the order of the matrix."""

    title: str
    cells: tuple[Cell, ...]
    machine: Machine
    seconds: Seconds
    started_at: Seconds
    version: int = RESULT_VERSION

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that tuned the cells; empty if there is only one host."""
        hosts = tuple(dict.fromkeys(cell.host for cell in self.cells if cell.host))
        return hosts if len(hosts) > 1 else ()

    @property
    def compares_devices(self) -> bool:
        """Whether cells differ in the number of devices."""
        return len({cell.result.placement.count for cell in self.cells if cell.result}) > 1

    def scaling_efficiencies(self) -> tuple[float | None, ...]:
        """Return the scaling efficiency of each cell.

        It is the rate per device, divided by the rate per device of a reference cell: among the cells with a result and the
        same values on all other axes, the one with the fewest devices. It is 1 if N devices train N times as many samples
        per second as one device. It is None for a cell without a result, and for all if they have equally many devices.
        """
        if not self.compares_devices:
            return (None,) * len(self.cells)
        pairs = [(_beside_devices(cell), cell.result) for cell in self.cells]
        rated = [(group, result) for group, result in pairs if result is not None and result.samples_per_second]
        rates: dict[str, float] = {}  # for each group, the rate of each device in the cell with the fewest devices
        for group, result in sorted(rated, key=lambda pair: pair[1].placement.count):
            rates.setdefault(group, result.rate_on_each)
        return tuple(result.rate_on_each / rates[group] if result and group in rates else None for group, result in pairs)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of all cells, in order of their first appearance."""
        return tuple(dict.fromkeys(axis for cell in self.cells for axis in cell.values))


def _beside_devices(cell: Cell) -> str:
    """Return a cell's values on all axes except `devices`, as text because a value may not be hashable."""
    others = [(axis, value) for axis, value in cell.values.items() if "devices" not in map(str.strip, axis.split(","))]
    return repr(sorted(others, key=lambda item: item[0]))
