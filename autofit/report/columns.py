"""The columns of the tables of trials and sweep cells; each column is defined once for all outputs."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from operator import attrgetter
from typing import Any, Generic, TypeVar

from autofit.records.knobs import KNOBS
from autofit.records.result import TuneRecord
from autofit.records.states import Stage
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import Limits, Trial, value_in_words
from autofit.records.units import format_bytes, format_rate
from autofit.report.choice import gain
from autofit.report.wording import NONE, outcome_label, short_names

Row = TypeVar("Row")


class Output(Flag):
    """An output that can show a column."""

    CONSOLE = auto()
    NOTEBOOK = auto()
    PAGE = auto()
    CSV = auto()


_PEOPLE = Output.CONSOLE | Output.NOTEBOOK | Output.PAGE
_HTML = Output.NOTEBOOK | Output.PAGE
_ALL = _PEOPLE | Output.CSV


@dataclass(frozen=True)
class Field:
    """One cell of a table, as text."""

    text: str
    order: float | None = None  # the number to sort by; None sorts by the text
    share: float | None = None  # the fraction of a limit to draw as a bar; None draws no bar


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table; each function takes a row."""

    name: str  # the key in CSV files and style sheets
    label: str  # the heading
    value: Callable[[Row], Any]  # None if the row has none
    form: Callable[[Any], str] = str  # formats a value for people
    shown: Output = _PEOPLE  # the outputs that show the column
    order: Callable[[Row], float | None] | None = None  # the number to sort by; by default, the value if it is a number
    share: Callable[[Row], float | None] | None = None  # as that of a field; by default, no bar is drawn

    def field(self, row: Row) -> Field:
        """Return the field of a row, formatted for people."""
        value = self.value(row)
        if value is None or value == "":
            return Field(NONE)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        order = self.order(row) if self.order else value if is_number else None
        return Field(self.form(value), order, self.share(row) if self.share else None)


@dataclass(frozen=True)
class TrialRow:
    """A trial, its number in the search (None for a later run) and the limits of the tune (None if unknown)."""

    trial: Trial
    number: int | None
    limits: Limits | None


def trial_rows(trials: Iterable[Trial], limits: Limits | None) -> list[TrialRow]:
    """Return a row for each trial, and number the trials of the search."""
    numbers = itertools.count(1)
    return [TrialRow(trial, next(numbers) if trial.stage is Stage.SEARCH else None, limits) for trial in trials]


def _workers(row: TrialRow) -> str | None:
    config = row.trial.config
    if config.workers is None:
        return None
    return f"{value_in_words(config.workers)} {'proc' if config.use_multiprocessing else 'thr'}"


def _reading(name: str, label: str, form: Callable[[Any], str], shown: Output = _PEOPLE) -> Column[TrialRow]:
    return Column(name, label, lambda row: getattr(row.trial.measurement, name), form, shown)


def _peak(memory: str) -> Column[TrialRow]:
    reading = _reading(f"{memory}_peak_bytes", memory, format_bytes)

    def share(row: TrialRow) -> float | None:
        peak, limit = reading.value(row), row.limits and getattr(row.limits, f"{memory}_bytes")
        return peak / limit if peak is not None and limit else None

    return replace(reading, share=share)


_TRIAL_COLUMNS: tuple[Column[TrialRow], ...] = (
    Column("trial", "trial", lambda row: row.number or row.trial.stage),
    Column("batch_size", "batch", lambda row: row.trial.config.batch_size, "{:,}".format),
    Column("workers", "workers", _workers, order=lambda row: row.trial.config.workers),
    Column("queue", "queue", lambda row: row.trial.config.queue_in_words, order=lambda row: row.trial.config.queue_batches),
    Column("steps_per_execution", "steps a call", lambda row: row.trial.config.steps_per_execution, shown=Output.PAGE),
    _reading("outcome", "outcome", outcome_label),
    _reading("samples_per_second", "samples/s", format_rate),
    _reading("spread", "±", "{:.0%}".format, Output.PAGE),
    _reading("compute_samples_per_second", "model alone", format_rate, Output.PAGE),
    _reading("input_samples_per_second", "input alone", format_rate, Output.PAGE),
    _peak("device"),
    _peak("host"),
    _reading("seconds", "seconds", "{:.0f}".format),
)


def trial_columns(output: Output, rows: Sequence[TrialRow]) -> list[Column[TrialRow]]:
    """Return the columns of a table of trials in an output; HTML outputs leave out columns without values."""
    shown = [column for column in _TRIAL_COLUMNS if column.shown & output]
    if not output & _HTML:
        return shown
    return [column for column in shown if any(column.value(row) is not None for row in rows)]


def _of_result(read: Callable[[TuneRecord], Any]) -> Callable[[Cell], Any]:
    return lambda cell: None if cell.result is None else read(cell.result)


def _result(name: str, label: str, form: Callable[[Any], str] = str, shown: Output = _ALL) -> Column[Cell]:
    return Column(name, label, _of_result(attrgetter(name)), form, shown)


def _figure(name: str, read: Callable[[TuneRecord], Any]) -> Column[Cell]:
    return Column(name, name, _of_result(read), shown=Output.CSV)


def _shown_ratio(result: TuneRecord) -> float | None:
    return result.speedup.ratio if result.speedup.is_shown or result.speedup.is_loss else None


def _scarce_peak(result: TuneRecord) -> int | None:
    answer = result.fastest
    return answer.host_peak_bytes if answer.device_peak_bytes is None else answer.device_peak_bytes


def _seconds(cell: Cell) -> float | None:
    return None if cell.tune is None else round(cell.tune.seconds, 1)


_CELL_COLUMNS: tuple[Column[Cell], ...] = (
    Column("outcome", "outcome", lambda cell: cell.outcome, shown=_HTML | Output.CSV),
    Column("config", "fastest that fits", _of_result(lambda result: result.config)),
    *(_figure(knob, attrgetter(f"config.{knob}")) for knob in KNOBS),
    _result("samples_per_second", "samples/s", format_rate),
    # without its interval, or that none is shown
    Column("gain", "gain", _of_result(lambda r: gain(r).value.partition(" (")[0]), order=_of_result(_shown_ratio)),
    _figure("speedup", lambda result: result.speedup.ratio),
    _figure("speedup_low", lambda result: result.speedup.low),
    _figure("speedup_high", lambda result: result.speedup.high),
    _figure("speedup_is_shown", lambda result: result.speedup.is_shown),
    Column("peak_bytes", "memory", _of_result(_scarce_peak), format_bytes, Output.CONSOLE),
    _result("device_peak_bytes", "device", format_bytes, _HTML | Output.CSV),
    _result("host_peak_bytes", "host", format_bytes, _HTML | Output.CSV),
    _result("bottleneck", "bottleneck"),
    _result("compute_samples_per_second", "model alone", format_rate, Output.CSV),
    _result("input_samples_per_second", "input alone", format_rate, Output.CSV),
    Column("trials", "trials", lambda cell: cell.tune and len(cell.tune.searched), shown=Output.CSV),
    Column("seconds", "seconds", _seconds, "{:.0f}".format, _HTML | Output.CSV),
    Column("host", "tuned on", lambda cell: cell.host, shown=_ALL),
    Column("problem", "problem", lambda cell: cell.problem_line, shown=Output.CSV),
)


def cell_columns(record: SweepRecord, output: Output) -> list[Column[Cell]]:
    """Return the columns of a sweep in an output: its axes, then the columns of its results."""
    alike = set[str]() if record.hosts else {"host"}  # left out for people if all cells have the same one
    shown = [c for c in _CELL_COLUMNS if c.shown & output and (output is Output.CSV or c.name not in alike)]
    taken, names = {column.label for column in shown}, short_names(record.axes)
    labels = {axis: axis if name in taken else name for axis, name in names.items()}
    return [*(_axis(axis, label) for axis, label in labels.items()), *shown]


def _axis(axis: str, label: str) -> Column[Cell]:
    return Column(axis, label, lambda cell: cell.values.get(axis))


def as_csv(record: SweepRecord) -> str:
    """Return a sweep as CSV text with a line for each cell; sizes are in bytes, rates in samples per second."""
    columns, text = cell_columns(record, Output.CSV), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([column.value(row) for column in columns] for row in record.cells)
    return text.getvalue()
