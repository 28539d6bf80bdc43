"""Write `result.json` atomically, and read it back with validation."""

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
_ALL_MAY_WRITE, _PERMISSIONS = 0o666, 0o777  # of a new file, before the umask; the bits of a file's mode
_CHOICE = [field.name for field in dataclasses.fields(Recommendation)]
_NOT_SAVED = ("stage", "number", "validation_batch_size")  # of a trial: saved with its run, or its place in the list


def encode(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """Convert a record to JSON types: the choice beside the other fields, each measurement beside its config."""
    fields: dict[str, Any] = _RECORDS.dump_python(record, mode="json", fallback=repr)
    if isinstance(record, TuneRecord):
        fields |= fields.pop("choice")
        fields["speedup"]["is_shown"] = record.speedup.is_shown
    fields["trials"] = [_flat(trial) for trial in fields["trials"]]
    fields["runs"] = encode_runs(record.runs)
    return fields


def decode(raw: Any) -> TuneRecord | FailedTune:
    """Convert JSON types to a record.

    Raises:
        pydantic.ValidationError: they are not a record.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("trials"), list):
        return _RECORDS.validate_python(raw)
    fields = dict(raw)
    if "problem" not in fields:
        fields["choice"] = {name: fields.pop(name) for name in _CHOICE if name in fields}
    if isinstance(fields.get("fit_kwargs"), dict):
        fields["fit_kwargs"] = _with_whole_labels(fields["fit_kwargs"])
    source = fields.get("call_source")
    if isinstance(source, dict) and isinstance(source.get("fit_kwargs"), dict):
        fields["call_source"] = {**source, "fit_kwargs": _with_whole_labels(source["fit_kwargs"])}
    runs = decode_runs(fields.get("runs", []))
    later = {_start(run): run.stage for run in runs if run.measurement.started_at is not None}
    trials = [_nested(trial) for trial in fields["trials"] if isinstance(trial, dict)]
    for number, trial in enumerate(trials):
        trial["number"] = number
    record = _RECORDS.validate_python({**fields, "trials": trials, "runs": ()})
    staged = [replace(trial, stage=later.get(_start(trial), trial.stage)) for trial in record.trials]
    return replace(record, trials=tuple(staged), runs=runs)


def _with_whole_labels(fit_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `fit` with the class numbers of `class_weight` as numbers, which keys of JSON cannot be."""
    weights = fit_kwargs.get("class_weight")
    if not isinstance(weights, dict) or not all(str(label).lstrip("-").isdigit() for label in weights):
        return fit_kwargs
    return {**fit_kwargs, "class_weight": {int(label): weight for label, weight in weights.items()}}


def _start(trial: Trial) -> tuple[FitConfig, float | None]:
    """Identify a trial among those that were saved without their stage."""
    return trial.config, trial.measurement.started_at


def encode_runs(runs: Sequence[Trial]) -> list[dict[str, Any]]:
    """Convert the trials after the search to JSON types."""
    encoded = []
    for run in _RUNS.dump_python(tuple(runs), mode="json", fallback=repr):
        trial = {key: value for key, value in run.items() if key not in _NOT_SAVED}
        encoded.append({"stage": run["stage"], "trial": trial, "validation_batch_size": run["validation_batch_size"]})
    return encoded


def decode_runs(raw: Any) -> tuple[Trial, ...]:
    """Convert JSON types to the trials after the search.

    Raises:
        pydantic.ValidationError: they are not such trials.
    """
    if isinstance(raw, list):
        raw = [
            {**run, **run["trial"]} if isinstance(run, dict) and isinstance(run.get("trial"), dict) else run for run in raw
        ]
    return _RUNS.validate_python(raw)


def _flat(trial: dict[str, Any]) -> dict[str, Any]:
    """Repeat the fields of a trial's measurement beside its config: readers of version 2 may use either form."""
    fields = {key: value for key, value in trial.items() if key not in _NOT_SAVED}
    return {**fields, **trial["measurement"]}


def _nested(trial: dict[str, Any]) -> dict[str, Any]:
    outer = ("config", "why")
    measurement = {key: value for key, value in trial.items() if key not in (*outer, "measurement")}
    return {**{key: trial[key] for key in outer if key in trial}, "measurement": measurement}


def save(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> None:
    """Write a record as JSON, atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write(json.dumps(encode(record), indent=2) + "\n", path)


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file atomically: in a temporary file that replaces it, with the permissions that it had.

    What a link points to is replaced, not the link; a device or a pipe is written to, not replaced.

    Raises:
        UsageError: the file cannot be written.
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
    """The permissions that this process does not give to new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def load_answer(path: str | os.PathLike[str]) -> TuneRecord:
    """Read the record of a tune with a result.

    Raises:
        UsageError: as `load`, or the tune has no result.
    """
    return answered(load(path), path)


def answered(record: TuneRecord | FailedTune, path: str | os.PathLike[str]) -> TuneRecord:
    """Return a record that was read from a file, if the tune has a result.

    Raises:
        UsageError: the tune has no result.
    """
    if isinstance(record, FailedTune):
        raise UsageError(f"{path}: the tune has no result: {record.problem}")
    return record


def load(path: str | os.PathLike[str]) -> TuneRecord | FailedTune:
    """Read a record.

    Raises:
        UsageError: the file cannot be read, is not a result, or has another version.
    """
    raw = read(path)
    if "cells" in raw:
        raise UsageError(f"{path}: is a sweep, not a result; show it with: autofit show {path}")
    try:
        return decode(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; the file is damaged") from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON of a result or a sweep.

    Raises:
        UsageError: the file cannot be read, is neither of them, or has another version than this autofit writes.
    """
    try:
        raw = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # the latter for one that is nested a thousand times
        raise UsageError(f"{path}: is not JSON ({error}); give a file that autofit tune or sweep wrote") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version is None:
        raise UsageError(f"{path}: is no result of autofit")
    if version != RESULT_VERSION:
        raise UsageError(f"{path}: is a result of version {version}; this autofit reads {RESULT_VERSION}")
    assert isinstance(raw, dict), "only a dict has a version"
    return raw
