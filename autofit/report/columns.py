"""Trials and cells of sweeps as rows of text, for console, notebook and page, and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from autofit.records.knobs import KNOBS
from autofit.records.result import Cell, SweepRecord, TuneRecord
from autofit.records.states import Stage
from autofit.records.trial import Limits, Trial
from autofit.records.units import format_bytes, format_rate
from autofit.report.choice import NONE, headlines, outcome_label

FASTEST = "fastest that fits"
OWN_BATCH = "at your batch"
# columns that are aligned to the left; those of numbers are aligned to the right
TEXTS = (
    "trial",
    "answer",
    "outcome",
    "device",
    "host",
    FASTEST,
    "bottleneck",
    "tuned on",
)
_OF_CELLS = (
    FASTEST,
    "samples/s",
    "gain",
    OWN_BATCH,
    "memory",
    "bottleneck",
    "tuned on",
)


def _text(value: Any, form: Callable[[Any], str] = str) -> str:
    return NONE if value is None else form(value)


def trial_rows(trials: Iterable[Trial], limits: Limits | None) -> list[dict[str, str]]:
    """Return the config and the readings of each trial; those of the search are numbered."""
    numbers = itertools.count(1)
    knobs = [
        (row.label, row.column) for row in KNOBS.values() if row.column is not None
    ]
    rows = []
    for trial in trials:
        measured = trial.measurement
        is_searched = trial.stage is Stage.SEARCH
        row = {
            "trial": str(next(numbers)) if is_searched else trial.stage.value,
            **{label: _text(column(trial.config)) for label, column in knobs},
            "outcome": outcome_label(measured.outcome),
            "samples/s": _text(measured.samples_per_second, format_rate),
            "±": _text(measured.spread, "{:.0%}".format),
            "device": peak_in_words(trial, limits, "device"),
            "host": peak_in_words(trial, limits, "host"),
            "model alone": _text(measured.alone("compute"), format_rate),
            "input alone": _text(measured.alone("input"), format_rate),
            "seconds": f"{measured.seconds:.0f}",
        }
        rows.append(row)
    return rows


def peak_share(trial: Trial, limits: Limits | None, memory: str) -> float | None:
    """Return a trial's peak of "device" or "host" memory as a share of its limit.

    None if either is missing.
    """
    peak = getattr(trial.measurement, f"{memory}_peak_bytes")
    limit = limits and getattr(limits, f"{memory}_bytes")
    return None if peak is None or not limit else float(peak / limit)


def peak_in_words(trial: Trial, limits: Limits | None, memory: str) -> str:
    """Return a trial's peak of "device" or "host" memory, and its share of the limit.

    It is a dash without a reading.
    """
    peak = getattr(trial.measurement, f"{memory}_peak_bytes")
    share = peak_share(trial, limits, memory)
    text = _text(peak, format_bytes)
    return text if share is None else f"{text} ({share:.0%})"


def cell_rows(record: SweepRecord) -> list[dict[str, str]]:
    """Return the values and the result of each cell of a sweep."""
    rows = []
    for cell in record.cells:
        row = {}
        for axis, name in short_names(record.axes).items():
            row[axis if name in _OF_CELLS else name] = _text(cell.values.get(axis))
        row |= dict.fromkeys(_OF_CELLS, "")
        row[FASTEST] = cell.outcome
        if record.hosts:
            row["tuned on"] = cell.host
        result = cell.result
        if result is not None:
            fastest = result.fastest
            gains = _gains(result)
            row |= {
                FASTEST: str(result.config),
                "samples/s": format_rate(result.samples_per_second),
                "gain": gains[-1],
                OWN_BATCH: gains[0] if len(gains) > 1 else "",
                "memory": _text(
                    fastest.device_peak_bytes or fastest.host_peak_bytes, format_bytes
                ),
                "bottleneck": _text(result.bottleneck),
            }
        rows.append(row)
    return rows


def _gains(result: TuneRecord) -> list[str]:
    """Return the gain of each answer in a few characters, that of the fastest last."""
    gains = []
    for headline in headlines(result):
        sure, _, gain = headline.gain.rpartition(": ")
        short, _, _ = gain.partition(" (")
        gains.append(f"{short} likely" if sure.startswith("likely") else short)
    return gains


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Return a short name for each axis.

    It is the last part of its name, or the whole name if two axes share the last part.
    """
    short = {}
    for axis in axes:
        names = [name.rpartition(".")[2].strip() for name in axis.split(",")]
        short[axis] = " = ".join(dict.fromkeys(names))
    counts = Counter(short.values())
    return {axis: name if counts[name] == 1 else axis for axis, name in short.items()}


def cell_label(values: Mapping[str, Any]) -> str:
    """Return the values of a cell in one line."""
    names = short_names(tuple(values))
    label = ", ".join(f"{names[axis]} {value}" for axis, value in values.items())
    return label or "the only cell"


def cell_outcome(cell: Cell) -> str:
    """Return the result of a cell in one line."""
    if cell.result is not None:
        rate = format_rate(cell.result.samples_per_second)
        return f"fastest: {cell.result.config}, {rate} samples/s"
    return f"{cell.outcome}: {cell.problem_line}"


def _alone(part: str, result: TuneRecord) -> float | None:
    epoch = result.epoch
    rate: float | None = getattr(
        epoch and epoch.run, f"{part}_samples_per_second", None
    )
    return rate


_CSV: dict[str, Callable[[TuneRecord], Any]] = {
    "config": attrgetter("config"),
    **{knob: attrgetter(f"config.{knob}") for knob in KNOBS},
    "samples_per_second": attrgetter("samples_per_second"),
    "gain": lambda result: _gains(result)[-1],
    "speedup": attrgetter("speedup.ratio"),
    **{
        f"speedup_{field}": attrgetter(f"speedup.{field}")
        for field in ("low", "high", "is_shown")
    },
    "probability": attrgetter("fastest.probability"),
    "same_batch_config": lambda result: result.same_batch and result.same_batch.config,
    "same_batch_speedup": lambda result: (
        result.same_batch and result.same_batch.speedup.ratio
    ),
    **{
        name: attrgetter(name)
        for name in (
            "device_peak_bytes",
            "host_peak_bytes",
            "bottleneck",
        )
    },
    **{
        f"{part}_samples_per_second": partial(_alone, part)
        for part in ("compute", "input")
    },
}


def as_csv(record: SweepRecord) -> str:
    """Return a sweep as CSV with a line for each cell: bytes, and samples per second."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*record.axes, "outcome", *_CSV, "trials", "seconds", "host", "problem"]
    )
    for cell in record.cells:
        line = [*map(cell.values.get, record.axes), cell.outcome]
        line += [cell.result and field(cell.result) for field in _CSV.values()]
        if cell.tune is None:
            line += [None, None]
        else:
            line += [len(cell.tune.searched), round(cell.tune.seconds, 1)]
        writer.writerow([*line, cell.host, cell.problem_line])
    return text.getvalue()
