"""A sweep as a table on the console."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autofit.records.result import TuneRecord
from autofit.records.sweep import Cell, CellOutcome, SweepRecord
from autofit.records.units import counted, format_bytes, format_rate, format_seconds
from autofit.report.choice import gain_figure
from autofit.report.console.summary import labelled
from autofit.report.wording import cell_label, short_names

_OTHER_COLUMNS = 4  # of a result, beside its rates
_MOST_ROWS = 500  # rich lays out ten thousand in a minute, and nobody reads them
_STYLES = {"ok": "green", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}


def sweep_table(record: SweepRecord) -> Group:
    """A row for each cell: its values, the fastest config, its rate, memory and bottleneck; then the failures."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    names = short_names(record.axes)
    for axis in record.axes:
        table.add_column(names[axis], overflow="fold")
    table.add_column("fastest that fits", overflow="fold")
    rates = ("samples/s", "per device", "scaling") if record.compares_devices else ("samples/s",)
    for name in (*rates, "gain", "memory"):
        table.add_column(name, justify="right")
    table.add_column("bottleneck")
    if record.hosts:
        table.add_column("host", overflow="fold")
    for cell, efficiency in list(zip(record.cells, record.scaling_efficiencies(), strict=True))[:_MOST_ROWS]:
        result = _result(cell, efficiency)
        result += [""] * (len(rates) + _OTHER_COLUMNS - len(result)) + ([cell.host] if record.hosts else [])
        table.add_row(*(str(cell.values.get(axis, "-")) for axis in record.axes), *result)
    texts = [(cell, cell.problem_line) for cell in record.cells if cell.problem]
    texts += [(cell, cell.note) for cell in record.cells if cell.note]
    failures = [Text(f"\n{cell_label(cell.values)}: {text}") for cell, text in texts[:_MOST_ROWS]]
    outcomes = [cell.outcome for cell in record.cells]
    tally = [f"{outcomes.count(outcome)} {outcome}" for outcome in CellOutcome if outcome in outcomes]
    total = f"\n{counted(len(record.cells), 'cell')}: {', '.join(tally)}; {format_seconds(record.seconds)} in this run"
    more = len(record.cells) - _MOST_ROWS
    cut = [Text(f"… and {counted(more, 'more cell')}, in the CSV file", style="dim")] if more > 0 else []
    return Group(table, *cut, *failures, Text(total))


def print_sweep(record: SweepRecord, console: Console) -> None:
    """Print the table of a sweep."""
    console.print(sweep_table(record))


def print_checked(checks: Mapping[str, str], console: Console) -> None:
    """Print the result of each check, by subject."""
    console.print(labelled(checks.items()))


def _result(cell: Cell, efficiency: float | None) -> list[RenderableType]:
    record = cell.tune
    if not isinstance(record, TuneRecord):
        return [Text(cell.outcome, style=_STYLES[cell.outcome])]
    scaling = [] if efficiency is None else [format_rate(record.rate_on_each), f"{efficiency:.0%}"]
    peak = record.host_peak_bytes if record.device_peak_bytes is None else record.device_peak_bytes
    return [
        str(record.config),
        format_rate(record.samples_per_second),
        *scaling,
        gain_figure(record) or "-",
        "-" if peak is None else format_bytes(peak),
        record.bottleneck,
    ]
