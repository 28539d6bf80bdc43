"""A sweep as a table, as `sweep.json` and as `sweep.csv`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.records.result import CellOutcome, SweepRecord, TuneRecord, _in_a_line, axes_of
from autofit.records.units import format_bytes, format_rate, format_seconds
from autofit.report.wording import short_names, told

_STYLES = {"ok": "green", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}


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
        if isinstance(found, TuneRecord):
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
    tally = [f"{outcomes.count(outcome)} {outcome}" for outcome in CellOutcome if outcome in outcomes]
    console.print(f"\n{len(record.cells)} cells: {', '.join(tally)}; {format_seconds(record.seconds)} in this run")


def print_checked(found: Mapping[str, str], console: Console) -> None:
    """Print what a check found, by what it is about."""
    grid = Table.grid(padding=(0, 2))
    for name, text in found.items():
        grid.add_row(Text(name, style="bold"), Text(text))
    console.print(grid)
