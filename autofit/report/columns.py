"""The columns of the tables of trials and of sweep cells, each listed once for every output that shows it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial
from typing import Any, Generic, TypeVar

from autofit.records.result import TuneRecord
from autofit.records.states import Stage
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import KNOBS, Limits, Trial, value_in_words
from autofit.records.units import format_bytes, format_rate
from autofit.report.choice import NONE, gain
from autofit.report.wording import outcome_label, short_names

Row = TypeVar("Row")


class Output(Flag):
    """Where a column is shown."""

    CONSOLE = auto()
    NOTEBOOK = auto()
    PAGE = auto()
    CSV = auto()


_PEOPLE = Output.CONSOLE | Output.NOTEBOOK | Output.PAGE
_HTML = Output.NOTEBOOK | Output.PAGE
_ALL = _PEOPLE | Output.CSV


@dataclass(frozen=True)
class Field:
    """One cell of a table: its text, the number it sorts by (None: by its text), and its share of a limit for a bar."""

    text: str
    order: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Args:
        name: the key in CSV files and style sheets.
        label: the heading.
        value: reads the value from a row; None where the row has none.
        form: writes a value for people.
        shown: the outputs that show the column.
        order: reads the number to sort by; the value if it is a number, by default.
        share: reads the share of a limit, which is drawn as a bar.
        is_optional: whether pages leave the column out if no row has a value.
    """

    name: str
    label: str
    value: Callable[[Row], Any]
    form: Callable[[Any], str] = str
    shown: Output = _PEOPLE
    order: Callable[[Row], float | None] | None = None
    share: Callable[[Row], float | None] | None = None
    is_optional: bool = False

    def field(self, row: Row) -> Field:
        """The value of a row as people read it."""
        value = self.value(row)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        order = self.order(row) if self.order else value if is_number else None
        share = self.share(row) if self.share else None
        return Field(NONE if value is None or value == "" else self.form(value), order, share)


def columns_of(columns: Iterable[Column[Row]], output: Output, rows: Sequence[Row]) -> list[Column[Row]]:
    """The columns that an output shows; HTML leaves out optional ones without a value."""
    shown = [column for column in columns if column.shown & output]
    if not output & _HTML:
        return shown
    return [column for column in shown if not column.is_optional or any(column.value(row) is not None for row in rows)]


@dataclass(frozen=True)
class TrialRow:
    """A trial with its number in the search, None for a later run, and the limits of the tune, None if unknown."""

    trial: Trial
    number: int | None
    limits: Limits | None


def trial_rows(trials: Iterable[Trial], limits: Limits | None) -> list[TrialRow]:
    """Number the trials of the search."""
    rows, count = [], 0
    for trial in trials:
        is_searched = trial.stage is Stage.SEARCH
        count += is_searched
        rows.append(TrialRow(trial, count if is_searched else None, limits))
    return rows


def _workers(row: TrialRow) -> str | None:
    config = row.trial.config
    if config.workers is None:
        return None
    return f"{value_in_words(config.workers)} {'proc' if config.use_multiprocessing else 'thr'}"


def _peak_share(row: TrialRow, memory: str) -> float | None:
    peak = getattr(row.trial.measurement, f"{memory}_peak_bytes")
    limit = row.limits and getattr(row.limits, f"{memory}_bytes")
    return peak / limit if peak is not None and limit else None


def _measured(name: str) -> Callable[[TrialRow], Any]:
    return lambda row: getattr(row.trial.measurement, name)


TRIAL_COLUMNS: tuple[Column[TrialRow], ...] = (
    Column("trial", "trial", lambda row: row.number or row.trial.stage),
    Column("batch_size", "batch", lambda row: row.trial.config.batch_size, "{:,}".format),
    Column("workers", "workers", _workers, order=lambda row: row.trial.config.workers, is_optional=True),
    Column(
        "queue",
        "queue",
        lambda row: row.trial.config.queue_in_words,
        order=lambda row: row.trial.config.queue_batches if row.trial.config.queue_in_words else None,
        is_optional=True,
    ),
    Column("outcome", "outcome", lambda row: row.trial.measurement.outcome, outcome_label),
    Column("samples_per_second", "samples/s", _measured("samples_per_second"), format_rate),
    Column("spread", "±", _measured("spread"), "{:.0%}".format, Output.PAGE, is_optional=True),
    Column(
        "compute_samples_per_second",
        "model alone",
        _measured("compute_samples_per_second"),
        format_rate,
        Output.PAGE,
        is_optional=True,
    ),
    Column(
        "input_samples_per_second",
        "input alone",
        _measured("input_samples_per_second"),
        format_rate,
        Output.PAGE,
        is_optional=True,
    ),
    *(
        Column(
            f"{memory}_peak_bytes",
            memory,
            _measured(f"{memory}_peak_bytes"),
            format_bytes,
            share=partial(_peak_share, memory=memory),
            is_optional=True,
        )
        for memory in ("device", "host")
    ),
    Column("seconds", "seconds", _measured("seconds"), "{:.0f}".format),
)
"""The columns of a table of trials."""


@dataclass(frozen=True)
class CellRow:
    """A cell of a sweep with its scaling efficiency, None if it is compared with no other."""

    cell: Cell
    efficiency: float | None

    @property
    def result(self) -> TuneRecord | None:
        """The result of the cell; None without one."""
        return self.cell.tune if isinstance(self.cell.tune, TuneRecord) else None


def cell_rows(record: SweepRecord) -> list[CellRow]:
    """A row for each cell of a sweep."""
    return [CellRow(*pair) for pair in zip(record.cells, record.scaling_efficiencies(), strict=True)]


def _of_result(read: Callable[[TuneRecord], Any]) -> Callable[[CellRow], Any]:
    return lambda row: None if row.result is None else read(row.result)


def _field(name: str) -> Callable[[CellRow], Any]:
    return _of_result(lambda result: getattr(result, name))


def _knob(knob: str) -> Column[CellRow]:
    return Column(knob, knob, _of_result(lambda result: getattr(result.config, knob)), shown=Output.CSV)


def _shown_ratio(result: TuneRecord) -> float | None:
    return result.speedup.ratio if result.speedup.is_shown or result.speedup.is_loss else None


CELL_COLUMNS: tuple[Column[CellRow], ...] = (
    Column("outcome", "outcome", lambda row: row.cell.outcome, shown=_HTML | Output.CSV),
    Column("config", "fastest that fits", _field("config"), order=_of_result(lambda result: result.config.batch_size)),
    *map(_knob, KNOBS),
    Column("samples_per_second", "samples/s", _field("samples_per_second"), format_rate, _ALL),
    Column("device_count", "devices", lambda row: row.cell.device_count, shown=Output.CSV),
    Column("samples_per_second_per_device", "per device", lambda row: row.cell.rate_on_each, format_rate, _ALL),
    Column("scaling_efficiency", "scaling", lambda row: row.efficiency, "{:.0%}".format, _ALL),
    Column("gain", "gain", _of_result(lambda result: gain(result).value), order=_of_result(_shown_ratio)),
    Column("speedup", "speedup", _of_result(lambda result: result.speedup.ratio), shown=Output.CSV),
    Column("speedup_low", "low", _of_result(lambda result: result.speedup.low), shown=Output.CSV),
    Column("speedup_high", "high", _of_result(lambda result: result.speedup.high), shown=Output.CSV),
    Column("speedup_is_shown", "shown", _of_result(lambda result: result.speedup.is_shown), shown=Output.CSV),
    Column(
        "peak_bytes",
        "memory",
        _of_result(lambda result: result.host_peak_bytes if result.device_peak_bytes is None else result.device_peak_bytes),
        format_bytes,
        Output.CONSOLE,
    ),
    Column("device_peak_bytes", "device", _field("device_peak_bytes"), format_bytes, _HTML | Output.CSV),
    Column("host_peak_bytes", "host", _field("host_peak_bytes"), format_bytes, _HTML | Output.CSV),
    Column("bottleneck", "bottleneck", _field("bottleneck"), shown=_ALL),
    Column("compute_samples_per_second", "model alone", _field("compute_samples_per_second"), shown=Output.CSV),
    Column("input_samples_per_second", "input alone", _field("input_samples_per_second"), shown=Output.CSV),
    Column("trials", "trials", lambda row: row.cell.tune and len(row.cell.tune.searched), shown=Output.CSV),
    Column(
        "seconds",
        "seconds",
        lambda row: row.cell.tune and round(row.cell.tune.seconds, 1),
        "{:.0f}".format,
        _HTML | Output.CSV,
    ),
    Column("host", "tuned on", lambda row: row.cell.host, shown=_ALL),
    Column("note", "note", lambda row: row.cell.note, shown=Output.CSV),
    Column("problem", "problem", lambda row: row.cell.problem_line, shown=Output.CSV),
)
"""The columns of a table of sweep cells, after those of the axes."""


def cell_columns(record: SweepRecord, output: Output) -> list[Column[CellRow]]:
    """The columns of a sweep in an output: its axes, and what it found; tables leave out what all cells have alike."""
    alike: set[str] = set() if record.compares_devices else {"samples_per_second_per_device", "scaling_efficiency"}
    alike |= set() if record.hosts else {"host"}
    shown = [c for c in columns_of(CELL_COLUMNS, output, ()) if output is Output.CSV or c.name not in alike]
    taken, names = {column.label for column in shown}, short_names(record.axes)
    labels = {axis: axis if name in taken else name for axis, name in names.items()}
    return [*(Column(axis, label, partial(_axis_value, axis=axis)) for axis, label in labels.items()), *shown]


def _axis_value(row: CellRow, axis: str) -> Any:
    return row.cell.values.get(axis)


def as_csv(record: SweepRecord) -> str:
    """Write a sweep as CSV with a line per cell; sizes in bytes, rates in samples per second."""
    columns, text = cell_columns(record, Output.CSV), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([column.value(row) for column in columns] for row in cell_rows(record))
    return text.getvalue()
