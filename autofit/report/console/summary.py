"""A result in a screenful: the choice, its rate, gain and margins, and the lines to paste."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from autofit.records.result import TuneRecord
from autofit.records.units import counted, format_bytes, format_rate, format_seconds
from autofit.report import devices
from autofit.report.advice import advice, updates_sentence
from autofit.report.choice import gain_sentence, why_not_highest
from autofit.report.console.trial_table import trial_table
from autofit.report.snippet import render


def summary(record: TuneRecord, *, with_advice: bool = False) -> Group:
    """The key figures of a result and the lines to paste.

    Args:
        record: the result.
        with_advice: whether to explain the bottleneck, the learning rate and the like in sentences.
    """
    spread = f" (±{record.spread:.0%})" if record.spread is not None else ""
    source = "confirmed in fresh processes" if record.choice.confirmed else "read once in the search: no time to confirm it"
    why = why_not_highest(record)
    explained = advice(record) if with_advice else {"bottleneck": record.bottleneck, "updates": updates_sentence(record)}
    searched = f"{record.stop_reason}; {counted(len(record.searched), 'trial')}, {format_seconds(record.seconds)} in all"
    figures = [
        ("chosen", str(record.config)),
        *([("devices", shares)] if (shares := devices.shares(record)) else []),
        ("rate", f"{format_rate(record.samples_per_second)} samples/s{spread}, {source}"),
        ("gain", gain_sentence(record)),
        *([("why", why)] if why else []),
        *((label, text) for label, text in explained.items() if text),
        ("device", _margin(record.device_peak_bytes, record.limits.device_bytes)),
        ("host", _margin(record.host_peak_bytes, record.limits.host_bytes)),
        ("search", searched),
    ]
    return Group(labelled(figures), "\nTo train with it:\n", Text(render(record), no_wrap=True, overflow="ignore"))


def summarise(record: TuneRecord, console: Console) -> None:
    """Print the summary of a result, with advice."""
    console.print()
    console.print(summary(record, with_advice=True), crop=False)


def print_trials(record: TuneRecord, console: Console) -> None:
    """Print the table of all trials of the search, and of the runs after it that failed."""
    searched = record.searched
    failed = [("run after it", trial) for trial in record.trials if trial not in searched]
    console.print(trial_table([*(("search", trial) for trial in searched), *failed], record.limits))


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """A grid of texts, each behind its label."""
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(label, style="bold"), Text(text))
    return grid


def _margin(peak_bytes: int | None, limit_bytes: int | None) -> str:
    peak = "not counted by this device's allocator" if peak_bytes is None else f"peak {format_bytes(peak_bytes)}"
    if limit_bytes is None:
        return f"{peak}; no limit of its own"
    if peak_bytes is None:
        return f"{peak}; limit {format_bytes(limit_bytes)}"
    return f"{peak} of {format_bytes(limit_bytes)}, {1 - peak_bytes / limit_bytes:.0%} free"
