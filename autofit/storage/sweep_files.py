"""Write `sweep.json` and `sweep.csv` atomically, and read the JSON back with validation."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import KNOBS
from autofit.storage import result_files

_SWEEPS = TypeAdapter(SweepRecord)
_CELLS = TypeAdapter(Cell)


def as_csv(record: SweepRecord) -> str:
    """Render a sweep as CSV with a line per cell; sizes in bytes, rates in samples per second."""
    columns = (
        "outcome", *KNOBS, "samples_per_second", "speedup", "speedup_low", "speedup_high", "speedup_is_shown",
        "device_peak_bytes", "host_peak_bytes", "bottleneck", "compute_samples_per_second", "input_samples_per_second",
        "device_count", "samples_per_second_per_device", "scaling_efficiency",
        "trials", "seconds", "host", "note", "problem",
    )  # fmt: skip  # one item a line would be longer, not clearer
    text = io.StringIO()
    writer = csv.DictWriter(text, [*record.axes, *columns], lineterminator="\n", restval="")
    writer.writeheader()
    for cell, efficiency in zip(record.cells, record.scaling_efficiencies(), strict=True):
        row = {**_row(cell), "scaling_efficiency": efficiency}
        writer.writerow({**cell.values, **{key: value for key, value in row.items() if value is not None}})
    return text.getvalue()


def _row(cell: Cell) -> dict[str, Any]:
    tune = cell.tune
    row: dict[str, Any] = {"outcome": cell.outcome, "problem": cell.problem_line, "host": cell.host, "note": cell.note}
    if tune is not None:
        row |= {"trials": len(tune.searched), "seconds": round(tune.seconds, 1)}
    if isinstance(tune, TuneRecord):
        speedup = tune.speedup
        row |= {knob: getattr(tune.config, knob) for knob in KNOBS}
        row |= {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}
        row["speedup_is_shown"] = speedup.is_shown
        row |= {"device_count": cell.device_count, "samples_per_second_per_device": cell.rate_on_each}
        names = ("device_peak_bytes", "host_peak_bytes", "bottleneck")
        rates = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
        row |= {name: getattr(tune, name) for name in (*names, *rates)}
    return row


def save(record: SweepRecord, path: str | os.PathLike[str]) -> None:
    """Write a sweep as JSON, and beside it as CSV; each atomically.

    Raises:
        UsageError: they cannot be written.
    """
    fields = _SWEEPS.dump_python(record, mode="json", fallback=repr)
    fields["cells"] = [
        {**raw_cell, "outcome": cell.outcome, "tune": None if cell.tune is None else result_files.encode(cell.tune)}
        for raw_cell, cell in zip(fields["cells"], record.cells, strict=True)
    ]
    table = csv_path(path)
    result_files.write(json.dumps(fields, indent=2) + "\n", path)
    result_files.write(as_csv(record), table)


def csv_path(path: str | os.PathLike[str]) -> Path:
    """The path of a sweep's CSV, beside its JSON.

    Raises:
        UsageError: the path of the JSON ends in .csv.
    """
    table = Path(path).with_suffix(".csv")
    if table == Path(path):
        raise UsageError(f"{path} is the path of the table; name the JSON file: {table.with_suffix('.json')}")
    return table


def load(path: str | os.PathLike[str]) -> SweepRecord | TuneRecord | FailedTune:
    """Read a file that `autofit sweep` or `autofit tune` wrote.

    Raises:
        UsageError: the file cannot be read, is neither of them, or has another version.
    """
    raw = result_files.read(path)
    if "cells" not in raw:
        return result_files.load(path)
    try:
        cells = [_cell(raw_cell) for raw_cell in raw["cells"]]
        return _SWEEPS.validate_python({**raw, "cells": cells})
    except (ValidationError, KeyError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path}: {first}; the file is damaged") from None


def _cell(raw: Any) -> Cell:
    """A cell, each part checked by itself: its record is read as that of a file of its own."""
    parts = {name: raw[name] for name in ("host", "note") if name in raw}  # files from before there were hosts have none
    cell = _CELLS.validate_python({"values": raw["values"], "problem": raw["problem"], **parts})
    return cell if raw["tune"] is None else replace(cell, tune=result_files.decode(raw["tune"]))
