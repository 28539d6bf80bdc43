"""Results as JSON, in files and in the attributes of a study, and whether a stored one is valid."""

# There is one rule of validity: an OOM, or a search that came near a limit, no longer counts once
# that limit has grown. What else must be the same for a result to be found is in its key
# (`tuning/request.py`).

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from autofit.errors import UsageError
from autofit.records.epoch import EpochRecord
from autofit.records.result import (
    RESULT_VERSION,
    Answer,
    FailedCommand,
    FailedTune,
    SweepRecord,
    TuneRecord,
)
from autofit.records.trial import Limits
from autofit.records.units import format_bytes

# The keys of a study's attributes: the prefix of the results (one per budget), the key that similar
# tunes share, the fingerprint of the described model, and the limits below results that failed in
# the user's training.
RECORD = "autofit:record"
WARM_START_KEY = "autofit:kin"
MODEL = "autofit:model"
FAILED = "autofit:failed"

StrPath = str | os.PathLike[str]
_RECORDS: TypeAdapter[TuneRecord | FailedTune] = TypeAdapter(TuneRecord | FailedTune)
_SWEEPS = TypeAdapter(SweepRecord)
_PRINTED: dict[str, TypeAdapter[Any]] = {
    "tune": TypeAdapter(TuneRecord | FailedTune | FailedCommand),
    "why": TypeAdapter(EpochRecord | FailedTune | FailedCommand),
}

# of a file: a result of ten thousand trials has less (measured: 5 kB for a trial)
_MOST_BYTES = 2**26
# of a damaged file's text in a message
_MOST_CHARACTERS = 100
# a limit has grown if it exceeds this: a device's free memory varies less from hour to hour
_LIMIT_SLACK_RATIO = 1.05
# of a limit: a search with a trial above this may have avoided larger configs because of the limit
_HELD_BACK_SHARE = 0.5


def encode(record: TuneRecord | FailedTune | SweepRecord) -> dict[str, Any]:
    """Convert a record to JSON types."""
    adapter: TypeAdapter[Any] = _SWEEPS if isinstance(record, SweepRecord) else _RECORDS
    return dict(adapter.dump_python(record, mode="json", fallback=repr))


def as_json(document: Any) -> str:
    """Return a record as a JSON document, as commands print it."""
    text = TypeAdapter(type(document)).dump_json(document, indent=2, fallback=repr)
    return text.decode()


def schema_of(command: Literal["tune", "why"]) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with `--json`, also if it fails."""
    return _PRINTED[command].json_schema(mode="serialization")


def decode(raw: Any) -> TuneRecord | FailedTune:
    """Convert JSON types to a record."""
    return _RECORDS.validate_python(raw)


def save(record: TuneRecord | FailedTune | SweepRecord, path: StrPath) -> None:
    """Write a record as JSON."""
    write(json.dumps(encode(record), indent=2) + "\n", path)


def csv_path(path: StrPath) -> Path:
    """Return the path of a sweep's CSV file, next to the JSON file."""
    table = Path(path).with_suffix(".csv")
    if table == Path(path):
        raise UsageError(
            f"{path} is the name of the CSV file; give the JSON file: {table.with_suffix('.json')}"
        )
    return table


def write(text: str, path: StrPath) -> None:
    """Write a file; it replaces an old one once it is complete, and keeps its permissions."""
    try:
        # a link stays
        target = Path(os.path.realpath(path))
        is_device_or_pipe = target.exists() and not target.is_file()
        if is_device_or_pipe:
            target.write_text(text, encoding="utf-8")
            return
        written = target.with_name(f".{target.name}-{os.getpid()}")
        try:
            written.write_text(text, encoding="utf-8")
            if target.exists():
                shutil.copymode(target, written)
            written.replace(target)
        finally:
            # if it is incomplete, as on a full disk
            written.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise UsageError(f"{problem}; give another path") from None


def load(path: StrPath) -> TuneRecord | FailedTune | SweepRecord:
    """Read a file that `autofit tune` or `autofit sweep` wrote; raise UsageError if it is of
    another kind or damaged.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it is larger than {format_bytes(_MOST_BYTES)}")
        raw = json.loads(content.decode())
        if raw["version"] == RESULT_VERSION:
            return _SWEEPS.validate_python(raw) if "cells" in raw else decode(raw)
        version = str(raw["version"])[:_MOST_CHARACTERS]
        problem = f"it has version {version}, and this autofit reads only version {RESULT_VERSION}"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    # RecursionError: values nested a thousand times
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        lines = "; ".join(str(error).splitlines()[:3])
        problem = f"it is not a result of autofit, or damaged: {lines}"
    raise UsageError(f"{path}: {problem}")


def load_tune(path: StrPath) -> TuneRecord:
    """Read a file of a tune with a result; raise UsageError if it is another, or damaged."""
    return tune_of(load(path), path)


def tune_of(record: TuneRecord | FailedTune | SweepRecord, path: StrPath) -> TuneRecord:
    """Return a record that was read from a file if it is a tune with a result.

    Otherwise raise UsageError.
    """
    if isinstance(record, SweepRecord):
        remedy = f"show it with: autofit show {path}"
        raise UsageError(f"{path}: this is a sweep, not a result; {remedy}")
    if isinstance(record, FailedTune):
        raise UsageError(f"{path}: the tune has no result: {record.problem}")
    return record


def answer_of(record: TuneRecord, *, same_batch: bool) -> Answer:
    """Return the fastest answer, or that at the own batch size; raise UsageError without one."""
    if not same_batch:
        return record.fastest
    if record.same_batch is None:
        raise UsageError(
            "the result has no answer at your own batch size: no configuration of it fits",
            key="same_batch",
        )
    return record.same_batch


def has_grown(memory: str, then: Limits, now: Limits) -> bool:
    """Return whether the limit of "device" or "host" memory has grown."""
    then_bytes = getattr(then, f"{memory}_bytes")
    now_bytes = getattr(now, f"{memory}_bytes")
    if then_bytes is None:
        return False
    return now_bytes is None or now_bytes > _LIMIT_SLACK_RATIO * then_bytes


def holds(record: TuneRecord, now: Limits) -> bool:
    """Return whether a result fits today's limits, and no limit that its search came near or
    exceeded has grown.
    """
    for memory in ("device", "host"):
        near_bytes = _HELD_BACK_SHARE * (getattr(record.limits, f"{memory}_bytes") or 0)
        measured = [trial.measurement for trial in record.trials]
        came_near = any(
            (getattr(m, f"{memory}_peak_bytes") or 0) > near_bytes for m in measured
        )
        is_held_back = came_near or any(m.outcome == f"{memory}_oom" for m in measured)
        if is_held_back and has_grown(memory, record.limits, now):
            return False
    fastest = record.fastest
    return now.allow(fastest.device_peak_bytes or 0, fastest.host_peak_bytes or 0)
