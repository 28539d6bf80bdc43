"""A result in a screenful: the choice, its margins, and the lines to paste."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autofit.records.result import TuneRecord
from autofit.records.units import format_bytes, format_rate, format_seconds
from autofit.report.advice import advice
from autofit.report.console.trial_table import _table
from autofit.report.snippet import baseline_gain, render


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the choice, its margins, the bottleneck, the gain, and the lines to paste."""
    spread = f" (±{record.spread:.0%})" if record.spread is not None else ""
    rows = [
        ("chosen", str(record.config)),
        ("rate", f"{format_rate(record.samples_per_second)} samples/s{spread}, confirmed in fresh processes"),
        ("gain", baseline_gain(record)),
        *advice(record).items(),
        ("device", _margin(record.device_peak_bytes, record.limits.device_bytes)),
        ("host", _margin(record.host_peak_bytes, record.limits.host_bytes)),
        ("search", f"{record.stop_reason}; {len(record.searched)} trials, {format_seconds(record.seconds)} in all"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), Text(text))
    console.print()
    console.print(grid)
    console.print("\nTo train with it:\n")
    console.print(escape(render(record)), soft_wrap=True, highlight=False)


def print_trials(record: TuneRecord, console: Console) -> None:
    """Print the table of all trials of the search, and of the runs after it that failed."""
    searched = record.searched
    failed = [("run after it", trial) for trial in record.trials if trial not in searched]
    console.print(_table([*(("search", trial) for trial in searched), *failed], record.limits))


def _margin(peak_bytes: int | None, limit_bytes: int | None) -> str:
    peak = "not counted by this device's allocator" if peak_bytes is None else f"peak {format_bytes(peak_bytes)}"
    if limit_bytes is None:
        return f"{peak}; no limit of its own"
    if peak_bytes is None:
        return f"{peak}; limit {format_bytes(limit_bytes)}"
    return f"{peak} of {format_bytes(limit_bytes)}, {1 - peak_bytes / limit_bytes:.0%} free"
