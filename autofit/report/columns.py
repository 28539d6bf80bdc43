"""Trials and cells of sweeps as rows of text, for console, notebook and page, and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from autofit.records.knobs import KNOBS
from autofit.records.result import Cell, SweepRecord, TuneRecord
from autofit.records.states import Stage
from autofit.records.trial import Limits, Trial
from autofit.records.units import format_bytes, format_rate
from autofit.report.choice import NONE, headlines, outcome_label

FASTEST, OWN_BATCH = "fastest that fits", "at your batch"
# columns that are aligned to the left; those of numbers are aligned to the right
TEXTS = ("trial", "answer", "outcome", "device", "host", FASTEST, "bottleneck", "tuned on")
_OF_CELLS = (FASTEST, "samples/s", "gain", OWN_BATCH, "memory", "bottleneck", "tuned on")


def _text(value: Any, form: Callable[[Any], str] = str) -> str:
    return NONE if value is None else form(value)


def trial_rows(trials: Iterable[Trial], limits: Limits | None) -> list[dict[str, str]]:
    """Return the config and the readings of each trial; those of the search are numbered."""
    numbers = itertools.count(1)
    knobs = [(row.label, row.column) for row in KNOBS.values() if row.column is not None]
    return [
        {
            "trial": str(next(numbers)) if trial.stage is Stage.SEARCH else trial.stage.value,
            **{label: _text(column(trial.config)) for label, column in knobs},
            "outcome": outcome_label(trial.measurement.outcome),
            "samples/s": _text(trial.measurement.samples_per_second, format_rate),
            "±": _text(trial.measurement.spread, "{:.0%}".format),
            "device": peak_in_words(trial, limits, "device"),
            "host": peak_in_words(trial, limits, "host"),
            "model alone": _text(trial.measurement.alone("compute"), format_rate),
            "input alone": _text(trial.measurement.alone("input"), format_rate),
            "seconds": f"{trial.measurement.seconds:.0f}",
        }
        for trial in trials
    ]


def peak_share(trial: Trial, limits: Limits | None, memory: str) -> float | None:
    """Return a trial's peak of "device" or "host" memory as a share of its limit.

    None if either is missing.
    """
    peak = getattr(trial.measurement, f"{memory}_peak_bytes")
    limit = limits and getattr(limits, f"{memory}_bytes")
    return None if peak is None or not limit else float(peak / limit)


def peak_in_words(trial: Trial, limits: Limits | None, memory: str) -> str:
    """Return a trial's peak of "device" or "host" memory, and its share of the limit."""
    peak = getattr(trial.measurement, f"{memory}_peak_bytes")
    if peak is None:
        return NONE
    share = peak_share(trial, limits, memory)
    return format_bytes(peak) + ("" if share is None else f" ({share:.0%})")


def cell_rows(record: SweepRecord) -> list[dict[str, str]]:
    """Return the values and the result of each cell of a sweep."""
    names = {
        axis: axis if name in _OF_CELLS else name for axis, name in short_names(record.axes).items()
    }
    rows = []
    for cell in record.cells:
        row = {name: _text(cell.values.get(axis)) for axis, name in names.items()} | dict.fromkeys(
            _OF_CELLS, ""
        )
        row |= {FASTEST: cell.outcome, "tuned on": cell.host if record.hosts else ""}
        if (result := cell.result) is not None:
            fastest, gains = result.fastest, _gains(result)
            row |= {
                FASTEST: str(result.config),
                "samples/s": format_rate(result.samples_per_second),
                "gain": gains[-1],
                OWN_BATCH: gains[0] if len(gains) > 1 else "",
                "memory": _text(fastest.device_peak_bytes or fastest.host_peak_bytes, format_bytes),
                "bottleneck": result.bottleneck,
            }
        rows.append(row)
    return rows


def _gains(result: TuneRecord) -> list[str]:
    """Return the gain of each answer in a few characters, that of the fastest last."""
    gains = []
    for headline in headlines(result):
        sure, _, gain = headline.gain.rpartition(": ")
        gains.append(gain.partition(" (")[0] + " likely" * sure.startswith("likely"))
    return gains


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Return a short name for each axis: the last part, or the whole if two axes share it."""
    last = {axis: [name.rpartition(".")[2].strip() for name in axis.split(",")] for axis in axes}
    short = {axis: " = ".join(dict.fromkeys(names)) for axis, names in last.items()}
    return {
        axis: name if list(short.values()).count(name) == 1 else axis
        for axis, name in short.items()
    }


def cell_label(values: Mapping[str, Any]) -> str:
    """Return the values of a cell in one line."""
    names = short_names(tuple(values))
    return ", ".join(f"{names[axis]} {value}" for axis, value in values.items()) or "the only cell"


def cell_outcome(cell: Cell) -> str:
    """Return the result of a cell in one line."""
    if cell.result is not None:
        rate = format_rate(cell.result.samples_per_second)
        return f"fastest: {cell.result.config}, {rate} samples/s"
    return f"{cell.outcome}: {cell.problem_line}"


_CSV: dict[str, Callable[[TuneRecord], Any]] = {
    "config": attrgetter("config"),
    **{knob: attrgetter(f"config.{knob}") for knob in KNOBS},
    "samples_per_second": attrgetter("samples_per_second"),
    "gain": lambda result: _gains(result)[-1],
    "speedup": attrgetter("speedup.ratio"),
    **{f"speedup_{field}": attrgetter(f"speedup.{field}") for field in ("low", "high", "is_shown")},
    "probability": attrgetter("fastest.probability"),
    "same_batch_config": lambda result: result.same_batch and result.same_batch.config,
    "same_batch_speedup": lambda result: result.same_batch and result.same_batch.speedup.ratio,
    **{name: attrgetter(name) for name in ("device_peak_bytes", "host_peak_bytes", "bottleneck")},
    **{
        name: attrgetter(name)
        for name in ("compute_samples_per_second", "input_samples_per_second")
    },
}


def as_csv(record: SweepRecord) -> str:
    """Return a sweep as CSV with a line for each cell, in bytes and samples per second."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*record.axes, "outcome", *_CSV, "trials", "seconds", "host", "problem"])
    for cell in record.cells:
        read = [None if cell.result is None else field(cell.result) for field in _CSV.values()]
        ran: tuple[object, ...] = (None, None)
        if cell.tune is not None:
            ran = (len(cell.tune.searched), round(cell.tune.seconds, 1))
        values = map(cell.values.get, record.axes)
        writer.writerow([*values, cell.outcome, *read, *ran, cell.host, cell.problem_line])
    return text.getvalue()
