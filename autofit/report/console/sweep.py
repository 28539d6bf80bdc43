"""A sweep as a table on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from autofit.records.sweep import CellOutcome, SweepRecord
from autofit.records.units import counted, format_seconds
from autofit.report.choice import NONE
from autofit.report.columns import CellRow, Column, Output, cell_columns, cell_rows
from autofit.report.console.summary import labelled
from autofit.report.wording import cell_label

_MOST_ROWS = 500  # rich lays out ten thousand in a minute, and nobody reads them
_STYLES = {"ok": "green", "does not fit": "yellow", "failed": "bold red", "waiting": "dim"}
_NUMBERS = ("samples_per_second", "samples_per_second_per_device", "scaling_efficiency", "gain", "peak_bytes")


def sweep_table(record: SweepRecord) -> Group:
    """A row for each cell with its values, fastest config, rate, memory and bottleneck; then the failures."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    columns = cell_columns(record, Output.CONSOLE)
    for column in columns:
        is_long = column.name in (*record.axes, "config", "gain", "host")
        justify: JustifyMethod = "right" if column.name in _NUMBERS else "left"
        table.add_column(column.label, justify=justify, no_wrap=not is_long, overflow="fold")
    for row in cell_rows(record)[:_MOST_ROWS]:
        table.add_row(*_texts(row, columns))
    problems = [(cell, cell.problem_line) for cell in record.cells if cell.problem]
    notes = [(cell, cell.note) for cell in record.cells if cell.note]
    failures = [Text(f"\n{cell_label(cell.values)}: {text}") for cell, text in [*problems, *notes][:_MOST_ROWS]]
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


def _texts(row: CellRow, columns: Sequence[Column[CellRow]]) -> list[Text]:
    """The fields of a cell; without a result, its outcome is in the place of the config."""
    if row.result is not None:
        return [Text(column.field(row).text) for column in columns]
    outcome = Text(row.cell.outcome, style=_STYLES[row.cell.outcome])
    return [outcome if c.name == "config" else Text(c.field(row).text.removeprefix(NONE)) for c in columns]
