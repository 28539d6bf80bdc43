"""Write `result.json` atomically, and read it back with validation."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import RESULT_VERSION, FailedTune, TuneRecord
from autofit.records.trial import Trial

_RECORDS: TypeAdapter[TuneRecord | FailedTune] = TypeAdapter(TuneRecord | FailedTune)
_TRIALS = TypeAdapter(tuple[Trial, ...])
_ALL_MAY_WRITE, _PERMISSIONS = 0o666, 0o777  # permissions of a new file before the umask; all permission bits


def encode(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """Convert a record to JSON types."""
    fields: dict[str, Any] = _RECORDS.dump_python(record, mode="json", fallback=repr)
    return fields


def decode(raw: Any) -> TuneRecord | FailedTune:
    """Convert JSON types to a record."""
    if isinstance(raw, dict):
        raw = _with_whole_labels(raw)
        if isinstance(raw.get("call_source"), dict):
            raw["call_source"] = _with_whole_labels(raw["call_source"])
    return _RECORDS.validate_python(raw)


def encode_trials(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Convert trials to JSON types."""
    encoded: list[dict[str, Any]] = _TRIALS.dump_python(tuple(trials), mode="json")
    return encoded


def decode_trials(raw: Any) -> tuple[Trial, ...]:
    """Convert JSON types to trials."""
    return _TRIALS.validate_python(raw)


def _with_whole_labels(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with integers as the keys of `class_weight` in `fit_kwargs`: in JSON, all keys are strings."""
    fit_kwargs = fields.get("fit_kwargs")
    if not isinstance(fit_kwargs, dict):
        return {**fields}
    weights = fit_kwargs.get("class_weight")
    if not isinstance(weights, dict) or not all(str(label).lstrip("-").isdigit() for label in weights):
        return {**fields}
    return {**fields, "fit_kwargs": {**fit_kwargs, "class_weight": {int(label): w for label, w in weights.items()}}}


def save(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> None:
    """Write a record as JSON, atomically."""
    write(json.dumps(encode(record), indent=2) + "\n", path)


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file atomically: write a temporary file, which replaces the file and takes over its permissions.

    If the path is a link, replace its target and keep the link. If it is a device or a pipe, write to it.

    Raises:
        UsageError: the file is not writable.
    """
    target = Path(os.path.realpath(path))
    written: Path | None = None
    try:
        if target.exists() and not target.is_file():
            with target.open("w") as device:
                device.write(text)
            return
        mode = target.stat().st_mode & _PERMISSIONS if target.exists() else _ALL_MAY_WRITE & ~_umask()
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}-", delete=False) as file:
            written = Path(file.name)
            file.write(text)
        written.chmod(mode)
        written.replace(target)
    except OSError as error:
        if written is not None:
            written.unlink(missing_ok=True)
        raise UsageError(f"{target}: the result cannot be written: {error.strerror}") from None


def _umask() -> int:
    """Return the permissions that this process withholds from new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def load_answer(path: str | os.PathLike[str]) -> TuneRecord:
    """Read the record of a tune that has a result."""
    return answered(load(path), path)


def answered(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> TuneRecord:
    """Return a record that was read from a file, after checking that the tune has a result.

    Raises:
        UsageError: the tune has no result.
    """
    if isinstance(record, FailedTune):
        raise UsageError(f"{path}: the tune has no result: {record.problem}")
    return record


def load(path: str | os.PathLike[str]) -> TuneRecord | FailedTune:
    """Read a record.

    Raises:
        UsageError: the file is not a result or is damaged.
    """
    raw = read(path)
    if "cells" in raw:
        raise UsageError(f"{path}: this is a sweep, not a result; show it with: autofit show {path}")
    try:
        return decode(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; the file is damaged") from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON of a result or a sweep.

    Raises:
        UsageError: the file cannot be read, is not JSON of autofit, or has another version.
    """
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
    assert isinstance(raw, dict), "only a dict has a version"
    return raw
