"""`result.json`: written whole, read back and checked."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.result import RESULT_VERSION, FailedTune, Recommendation, TuneRecord
from autofit.records.trial import FitConfig, Trial

_RECORDS: TypeAdapter[TuneRecord | FailedTune] = TypeAdapter(TuneRecord | FailedTune)
_RUNS = TypeAdapter(tuple[Trial, ...])
_CHOICE = [field.name for field in dataclasses.fields(Recommendation)]
_NOT_SAVED = ("stage", "number", "validation_batch_size")  # of a trial: in the runs, or known from its place


def encode(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """A record as JSON types: the choice beside the other fields, each trial's measurement beside its config."""
    fields: dict[str, Any] = _RECORDS.dump_python(record, mode="json", fallback=repr)
    if isinstance(record, TuneRecord):
        fields |= fields.pop("choice") | {"confirmed": True}
    fields["trials"] = [_flat(trial) for trial in fields["trials"]]
    fields["runs"] = encode_runs(record.runs)
    return fields


def decode(raw: Any) -> TuneRecord | FailedTune:
    """A record from JSON types.

    Raises:
        pydantic.ValidationError: it is not one.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("trials"), list):
        return _RECORDS.validate_python(raw)
    fields = dict(raw)
    if "problem" not in fields:
        fields["choice"] = {name: fields.pop(name) for name in _CHOICE if name in fields}
    runs = decode_runs(fields.get("runs", []))
    later = {_start(run): run.stage for run in runs if run.measurement.started_at is not None}
    trials = [_nested(trial) for trial in fields["trials"] if isinstance(trial, dict)]
    for number, trial in enumerate(trials):
        trial["number"] = number
    record = _RECORDS.validate_python({**fields, "trials": trials, "runs": ()})
    staged = [replace(trial, stage=later.get(_start(trial), trial.stage)) for trial in record.trials]
    return replace(record, trials=tuple(staged), runs=runs)


def _start(trial: Trial) -> tuple[FitConfig, float | None]:
    """Tells trials apart that were saved without their stage."""
    return trial.config, trial.measurement.started_at


def encode_runs(runs: Sequence[Trial]) -> list[dict[str, Any]]:
    """Trials after the search as JSON types."""
    encoded = []
    for run in _RUNS.dump_python(tuple(runs), mode="json", fallback=repr):
        trial = {key: value for key, value in run.items() if key not in _NOT_SAVED}
        encoded.append({"stage": run["stage"], "trial": trial, "validation_batch_size": run["validation_batch_size"]})
    return encoded


def decode_runs(raw: Any) -> tuple[Trial, ...]:
    """Trials after the search from JSON types.

    Raises:
        pydantic.ValidationError: they are not such trials.
    """
    if isinstance(raw, list):
        raw = [
            {**run, **run["trial"]} if isinstance(run, dict) and isinstance(run.get("trial"), dict) else run for run in raw
        ]
    return _RUNS.validate_python(raw)


def _flat(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with its measurement beside the config, and once more by itself: readers of version 2 may use either."""
    kept = {key: value for key, value in trial.items() if key not in _NOT_SAVED}
    return {**kept, **trial["measurement"]}


def _nested(trial: dict[str, Any]) -> dict[str, Any]:
    own = ("config", "why")
    measurement = {key: value for key, value in trial.items() if key not in (*own, "measurement")}
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
