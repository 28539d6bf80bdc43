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
        if isinstance(self.tune, TuneRecord):
            return CellOutcome.OK
        if self.tune is None:
            return CellOutcome.FAILED if self.problem else CellOutcome.WAITING
        return CellOutcome.DOES_NOT_FIT if self.tune.memory else CellOutcome.FAILED

    @property
    def result(self) -> TuneRecord | None:
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
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for cell in self.cells for axis in cell.values))
