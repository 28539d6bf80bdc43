"""`result.json`: written whole, read back and checked."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import RESULT_VERSION, FailedTune, TuneRecord

_RECORDS: TypeAdapter[TuneRecord | FailedTune] = TypeAdapter(TuneRecord | FailedTune)


def encode(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """A record as JSON types; each trial is flat, its measurement beside its config."""
    told: dict[str, Any] = _RECORDS.dump_python(record, mode="json", fallback=repr)
    told["trials"] = [{**trial, **trial.pop("measurement")} for trial in told["trials"]]
    return told


def decode(told: Any) -> TuneRecord | FailedTune:
    """A record from JSON types.

    Raises:
        pydantic.ValidationError: that is no record.
    """
    if isinstance(told, dict) and isinstance(told.get("trials"), list):
        trials = [trial for trial in told["trials"] if isinstance(trial, dict)]
        told = {**told, "trials": [_nested(trial) for trial in trials]}
    return _RECORDS.validate_python(told)


def _nested(trial: dict[str, Any]) -> dict[str, Any]:
    own = ("config", "why")
    measurement = {key: value for key, value in trial.items() if key not in own}
    return {**{key: trial[key] for key in own if key in trial}, "measurement": measurement}


def save(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> None:
    """Write a record as JSON; an older file stays whole until the new one is.

    Raises:
        UsageError: the file cannot be written.
    """
    write(json.dumps(encode(record), indent=2) + "\n", path)


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file whole, or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    target = Path(path)
    written: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}-", delete=False) as file:
            written = Path(file.name)
            file.write(text)
        written.chmod(0o644)
        written.replace(target)
    except OSError as error:
        if written is not None:
            written.unlink(missing_ok=True)
        raise UsageError(f"{target}: the result cannot be written: {error.strerror}") from None


def load_answer(path: str | os.PathLike[str]) -> TuneRecord:
    """Read the record of a tune that came to an answer.

    Raises:
        UsageError: as `load`, and where there was no answer.
    """
    return answered(load(path), path)


def answered(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> TuneRecord:
    """The record that was read from a file, if it is an answer.

    Raises:
        UsageError: it is none.
    """
    if isinstance(record, FailedTune):
        raise UsageError(f"{path}: holds no answer: {record.problem}")
    return record


def load(path: str | os.PathLike[str]) -> TuneRecord | FailedTune:
    """Read a record.

    Raises:
        UsageError: the file cannot be read, is no result, or is of another version.
    """
    told = read(path)
    if "cells" in told:
        raise UsageError(f"{path}: is a sweep, not one result; see it with: autofit show {path}")
    try:
        return decode(told)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; the file is damaged") from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON of a result or a sweep, of the version that this autofit writes.

    Raises:
        UsageError: the file cannot be read, is neither, or is of another version.
    """
    try:
        told = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON ({error}); give a file that autofit tune or sweep wrote") from None
    version = told.get("version") if isinstance(told, dict) else None
    if version != RESULT_VERSION:
        found = (
            "no result of autofit"
            if version is None
            else f"a result of version {version}; this autofit reads {RESULT_VERSION}"
        )
        raise UsageError(f"{path}: is {found}")
    assert isinstance(told, dict), "it has a version"
    return told
