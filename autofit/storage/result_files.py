"""Write `result.json`, `sweep.json` and `sweep.csv` atomically, and read the JSON back with validation."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import RESULT_VERSION, FailedTune, TuneRecord
from autofit.records.sweep import SweepRecord
from autofit.records.trial import Trial

TRIALS = TypeAdapter(tuple[Trial, ...])  # converts trials to JSON types and back
_RECORDS: TypeAdapter[TuneRecord | FailedTune] = TypeAdapter(TuneRecord | FailedTune)
_SWEEPS = TypeAdapter(SweepRecord)


def encode(record: TuneRecord | FailedTune | SweepRecord) -> dict[str, Any]:
    """Convert a record to JSON types."""
    if not isinstance(record, SweepRecord):
        fields: dict[str, Any] = _RECORDS.dump_python(record, mode="json", fallback=repr)
        return fields
    fields = _SWEEPS.dump_python(record, mode="json", fallback=repr, exclude={"cells": {"__all__": {"tune"}}})
    fields["cells"] = [
        {**raw_cell, "outcome": cell.outcome, "tune": None if cell.tune is None else encode(cell.tune)}
        for raw_cell, cell in zip(fields["cells"], record.cells, strict=True)
    ]
    return fields


def decode(raw: Any) -> TuneRecord | FailedTune:
    """Convert JSON types to a record."""
    return _RECORDS.validate_python(raw)


def save(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> None:
    """Write a record as JSON, atomically."""
    write(json.dumps(encode(record), indent=2) + "\n", path)


def save_sweep(record: SweepRecord, path: str | os.PathLike[str], table: str) -> None:
    """Write a sweep as JSON to `path`, and its `table` as CSV next to it, each atomically."""
    table_path = csv_path(path)
    write(json.dumps(encode(record), indent=2) + "\n", path)
    write(table, table_path)


def csv_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a sweep's CSV file, next to the JSON file."""
    table = Path(path).with_suffix(".csv")
    if table == Path(path):
        raise UsageError(f"{path} is the name of the CSV file; give the JSON file: {table.with_suffix('.json')}")
    return table


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file atomically: write a temporary file with the old file's permissions, then replace the old file by it."""
    target = Path(os.path.realpath(path))  # a link stays
    written = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        if target.exists() and not target.is_file():  # a device or a pipe
            target.write_text(text)
            return
        with written.open("x") as file:
            if target.exists():
                shutil.copymode(target, written)
            file.write(text)
        written.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            written.unlink()
        raise UsageError(f"{target}: the result cannot be written ({error.strerror}); give another path") from None


def load(path: str | os.PathLike[str]) -> TuneRecord | FailedTune | SweepRecord:
    """Read a file that `autofit tune` or `autofit sweep` wrote; raise UsageError if it is of another kind or damaged."""
    try:
        raw = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # RecursionError for values nested a thousand times
        raise UsageError(f"{path}: the file is not JSON ({error}); give a file that autofit tune or sweep wrote") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version is None:
        raise UsageError(f"{path}: the file is not a result of autofit")
    if version != RESULT_VERSION:
        raise UsageError(f"{path}: the file has version {version}; this autofit reads only version {RESULT_VERSION}")
    try:
        return _SWEEPS.validate_python(raw) if "cells" in raw else decode(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; the file is damaged, so tune again"
        ) from None


def answered(record: TuneRecord | FailedTune | SweepRecord, path: str | os.PathLike[str]) -> TuneRecord:
    """Return a record that was read from a file if it is a tune with a result; otherwise raise UsageError."""
    if isinstance(record, SweepRecord):
        raise UsageError(f"{path}: this is a sweep, not a result; show it with: autofit show {path}")
    if isinstance(record, FailedTune):
        raise UsageError(f"{path}: the tune has no result: {record.problem}")
    return record
