"""A sweep as a table, as `sweep.json` and as `sweep.csv`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.errors import UsageError
from autofit.records import KNOBS
from autofit.report import files
from autofit.results import Cell, SweepRecord, TuningRecord, Unanswered
from autofit.units import format_bytes, format_rate, format_seconds

_SWEEPS = TypeAdapter(SweepRecord)
_STYLES = {"ok": "green", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}


def axes_of(record: SweepRecord) -> tuple[str, ...]:
    """All axes, in the order in which cells name them."""
    return tuple(dict.fromkeys(axis for cell in record.cells for axis in cell.values))


def short_names(axes: tuple[str, ...]) -> dict[str, str]:
    """For each axis the last part of what it sets, or the whole where two would be called alike."""
    last = {axis: [name.rpartition(".")[2].strip() for name in axis.split(",")] for axis in axes}
    short = {axis: " = ".join(dict.fromkeys(names)) for axis, names in last.items()}
    return {axis: name if list(short.values()).count(name) == 1 else axis for axis, name in short.items()}


def told(values: Mapping[str, Any]) -> str:
    """The values of a cell in a line."""
    names = short_names(tuple(values))
    return ", ".join(f"{names[axis]} {value}" for axis, value in values.items()) or "the only cell"


def print_sweep(record: SweepRecord, console: Console) -> None:
    """Print a line for each cell: its values, the fastest config, its rate, memory and bottleneck; then what failed."""
    axes = axes_of(record)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for axis in axes:
        table.add_column(short_names(axes)[axis], overflow="fold")
    table.add_column("fastest that fits", overflow="fold")
    for name in ("samples/s", "gain", "memory"):
        table.add_column(name, justify="right")
    table.add_column("bottleneck")
    for cell in record.cells:
        values = [str(cell.values.get(axis, "-")) for axis in axes]
        found = cell.found
        if isinstance(found, TuningRecord):
            ratio = found.speedup.ratio
            gain = "-" if ratio is None else f"{ratio:.2f}x"
            peak = found.host_peak_bytes if found.device_peak_bytes is None else found.device_peak_bytes
            memory = "-" if peak is None else format_bytes(peak)
            table.add_row(*values, str(found.config), format_rate(found.samples_per_second), gain, memory, found.bottleneck)
        else:
            table.add_row(*values, Text(cell.outcome, style=_STYLES[cell.outcome]))
    console.print(table)
    for cell in record.cells:
        if cell.problem:
            console.print(f"\n{told(cell.values)}: {_in_a_line(cell.problem)}", markup=False, soft_wrap=False)
    outcomes = [cell.outcome for cell in record.cells]
    tally = [f"{outcomes.count(outcome)} {outcome}" for outcome in _STYLES if outcome in outcomes]
    console.print(f"\n{len(record.cells)} cells: {', '.join(tally)}; {format_seconds(record.seconds)} in this run")


def came_to(cell: Cell) -> str:
    """What a cell came to, in a line."""
    if isinstance(cell.found, TuningRecord):
        return f"fastest: {cell.found.config}, {format_rate(cell.found.samples_per_second)} samples/s"
    return f"{cell.outcome}: {_in_a_line(cell.problem)}"


def _in_a_line(problem: str) -> str:
    """A problem without its traceback: how it begins and what it comes to."""
    lines = problem.strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1].strip()}"


def print_checked(found: Mapping[str, str], console: Console) -> None:
    """Print what a check found, by what it is about."""
    grid = Table.grid(padding=(0, 2))
    for name, text in found.items():
        grid.add_row(Text(name, style="bold"), Text(text))
    console.print(grid)


def as_csv(record: SweepRecord) -> str:
    """A line for each cell; sizes in bytes, rates in samples per second."""
    axes = axes_of(record)
    columns = (
        "outcome", *KNOBS, "samples_per_second", "speedup", "speedup_low", "speedup_high", "device_peak_bytes",
        "host_peak_bytes", "bottleneck", "compute_samples_per_second", "input_samples_per_second", "trials", "seconds",
        "problem",
    )  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, [*axes, *columns], lineterminator="\n", restval="")
    writer.writeheader()
    for cell in record.cells:
        writer.writerow({**cell.values, **{key: value for key, value in _row(cell).items() if value is not None}})
    return text.getvalue()


def _row(cell: Cell) -> dict[str, Any]:
    found = cell.found
    row: dict[str, Any] = {"outcome": cell.outcome, "problem": _in_a_line(cell.problem) if cell.problem else ""}
    if found is not None:
        row |= {"trials": len(found.searched), "seconds": round(found.seconds, 1)}
    if isinstance(found, TuningRecord):
        speedup = found.speedup
        row |= {knob: getattr(found.config, knob) for knob in KNOBS}
        row |= {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}
        names = ("device_peak_bytes", "host_peak_bytes", "bottleneck")
        rates = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
        row |= {name: getattr(found, name) for name in (*names, *rates)}
    return row


def save(record: SweepRecord, path: str | os.PathLike[str]) -> None:
    """Write a sweep as JSON, and beside it as CSV; older files stay whole until the new ones are.

    Raises:
        UsageError: they cannot be written.
    """
    whole = _SWEEPS.dump_python(record, mode="json", fallback=repr)
    whole["cells"] = [
        {**told, "outcome": cell.outcome, "found": None if cell.found is None else files.encode(cell.found)}
        for told, cell in zip(whole["cells"], record.cells, strict=True)
    ]
    table = csv_path(path)
    files.write(json.dumps(whole, indent=2) + "\n", path)
    files.write(as_csv(record), table)


def csv_path(path: str | os.PathLike[str]) -> Path:
    """Where the CSV of a sweep stands beside its JSON.

    Raises:
        UsageError: the JSON stands there.
    """
    beside = Path(path).with_suffix(".csv")
    if beside == Path(path):
        raise UsageError(f"{path} is where the table goes; name the JSON file, as {beside.with_suffix('.json')}")
    return beside


def load(path: str | os.PathLike[str]) -> SweepRecord | TuningRecord | Unanswered:
    """Read what `autofit sweep` or `autofit tune` wrote.

    Raises:
        UsageError: the file cannot be read, is neither, or is of another version.
    """
    whole = files.read(path)
    if "cells" not in whole:
        return files.load(path)
    try:
        cells = [
            Cell(cell["values"], None if cell["found"] is None else files.decode(cell["found"]), cell["problem"])
            for cell in whole["cells"]
        ]
        return _SWEEPS.validate_python({**whole, "cells": cells})
    except (ValidationError, KeyError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path}: {first}; the file is damaged") from None
