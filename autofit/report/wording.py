"""Words for cells of a sweep and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.records.result import Cell, TuneRecord, _in_a_line
from autofit.records.units import format_rate


def short_names(axes: tuple[str, ...]) -> dict[str, str]:
    """For each axis the last part of what it sets, or the whole where two would be called alike."""
    last = {axis: [name.rpartition(".")[2].strip() for name in axis.split(",")] for axis in axes}
    short = {axis: " = ".join(dict.fromkeys(names)) for axis, names in last.items()}
    return {axis: name if list(short.values()).count(name) == 1 else axis for axis, name in short.items()}


def told(values: Mapping[str, Any]) -> str:
    """The values of a cell in a line."""
    names = short_names(tuple(values))
    return ", ".join(f"{names[axis]} {value}" for axis, value in values.items()) or "the only cell"


def came_to(cell: Cell) -> str:
    """What a cell came to, in a line."""
    if isinstance(cell.found, TuneRecord):
        return f"fastest: {cell.found.config}, {format_rate(cell.found.samples_per_second)} samples/s"
    return f"{cell.outcome}: {_in_a_line(cell.problem)}"
