"""Labels of a sweep's axes and cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofit.records.result import Cell, TuneRecord
from autofit.records.units import format_rate


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """The last part of each axis's name; the whole name where two axes would share the short one."""
    last = {axis: [name.rpartition(".")[2].strip() for name in axis.split(",")] for axis in axes}
    short = {axis: " = ".join(dict.fromkeys(names)) for axis, names in last.items()}
    return {axis: name if list(short.values()).count(name) == 1 else axis for axis, name in short.items()}


def cell_label(values: Mapping[str, Any]) -> str:
    """The values of a cell in one line."""
    names = short_names(tuple(values))
    return ", ".join(f"{names[axis]} {value}" for axis, value in values.items()) or "the only cell"


def cell_outcome(cell: Cell) -> str:
    """The result of a cell in one line."""
    if isinstance(cell.found, TuneRecord):
        return f"fastest: {cell.found.config}, {format_rate(cell.found.samples_per_second)} samples/s"
    return f"{cell.outcome}: {cell.problem_line}"
