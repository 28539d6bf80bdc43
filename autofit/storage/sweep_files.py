"""`sweep.json` and `sweep.csv`: written whole, read back and checked."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import Cell, FailedTune, SweepRecord, TuneRecord
from autofit.records.trial import KNOBS
from autofit.storage import result_files

_SWEEPS = TypeAdapter(SweepRecord)


def as_csv(record: SweepRecord) -> str:
    """A line for each cell; sizes in bytes, rates in samples per second."""
    columns = (
        "outcome", *KNOBS, "samples_per_second", "speedup", "speedup_low", "speedup_high", "device_peak_bytes",
        "host_peak_bytes", "bottleneck", "compute_samples_per_second", "input_samples_per_second", "trials", "seconds",
        "problem",
    )  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, [*record.axes, *columns], lineterminator="\n", restval="")
    writer.writeheader()
    for cell in record.cells:
        writer.writerow({**cell.values, **{key: value for key, value in _row(cell).items() if value is not None}})
    return text.getvalue()


def _row(cell: Cell) -> dict[str, Any]:
    found = cell.found
    row: dict[str, Any] = {"outcome": cell.outcome, "problem": cell.problem_line}
    if found is not None:
        row |= {"trials": len(found.searched), "seconds": round(found.seconds, 1)}
    if isinstance(found, TuneRecord):
        speedup = found.speedup
        row |= {knob: getattr(found.config, knob) for knob in KNOBS}
        row |= {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}
        names = ("device_peak_bytes", "host_peak_bytes", "bottleneck")
        rates = ("samples_per_second", "compute_samples_per_second", "input_samples_per_second")
        row |= {name: getattr(found, name) for name in (*names, *rates)}
    return row


def save(record: SweepRecord, path: str | os.PathLike[str]) -> None:
    """Write a sweep as JSON, and beside it as CSV; older files stay whole until the new ones are.

    Raises:
        UsageError: they cannot be written.
    """
    whole = _SWEEPS.dump_python(record, mode="json", fallback=repr)
    whole["cells"] = [
        {**told, "outcome": cell.outcome, "found": None if cell.found is None else result_files.encode(cell.found)}
        for told, cell in zip(whole["cells"], record.cells, strict=True)
    ]
    table = csv_path(path)
    result_files.write(json.dumps(whole, indent=2) + "\n", path)
    result_files.write(as_csv(record), table)


def csv_path(path: str | os.PathLike[str]) -> Path:
    """Where the CSV of a sweep stands beside its JSON.

    Raises:
        UsageError: the JSON stands there.
    """
    beside = Path(path).with_suffix(".csv")
    if beside == Path(path):
        raise UsageError(f"{path} is where the table goes; name the JSON file, as {beside.with_suffix('.json')}")
    return beside


def load(path: str | os.PathLike[str]) -> SweepRecord | TuneRecord | FailedTune:
    """Read what `autofit sweep` or `autofit tune` wrote.

    Raises:
        UsageError: the file cannot be read, is neither, or is of another version.
    """
    whole = result_files.read(path)
    if "cells" not in whole:
        return result_files.load(path)
    try:
        cells = [
            Cell(cell["values"], None if cell["found"] is None else result_files.decode(cell["found"]), cell["problem"])
            for cell in whole["cells"]
        ]
        return _SWEEPS.validate_python({**whole, "cells": cells})
    except (ValidationError, KeyError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path}: {first}; the file is damaged") from None
