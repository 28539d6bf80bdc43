"""Write `sweep.json` and `sweep.csv` atomically; read and validate the JSON."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.storage import result_files

_SWEEPS = TypeAdapter(SweepRecord)
_CELLS = TypeAdapter(Cell)


def save(record: SweepRecord, path: str | os.PathLike[str], table: str) -> None:
    """Write a sweep as JSON to `path`, and its `table` as CSV next to it, each atomically."""
    fields = _SWEEPS.dump_python(record, mode="json", fallback=repr, exclude={"cells": {"__all__": {"tune"}}})
    fields["cells"] = [
        {**raw_cell, "outcome": cell.outcome, "tune": None if cell.tune is None else result_files.encode(cell.tune)}
        for raw_cell, cell in zip(fields["cells"], record.cells, strict=True)
    ]
    table_path = csv_path(path)
    result_files.write(json.dumps(fields, indent=2) + "\n", path)
    result_files.write(table, table_path)


def csv_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a sweep's CSV file, next to the JSON file."""
    table = Path(path).with_suffix(".csv")
    if table == Path(path):
        raise UsageError(f"{path} is the name of the CSV file; give the JSON file: {table.with_suffix('.json')}")
    return table


def load(path: str | os.PathLike[str]) -> SweepRecord | TuneRecord | FailedTune:
    """Read a file written by `autofit sweep` or `autofit tune`."""
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
    """Read a cell; its tune has the format of a result file."""
    cell = _CELLS.validate_python({**raw, "tune": None})
    return cell if raw["tune"] is None else replace(cell, tune=result_files.decode(raw["tune"]))
