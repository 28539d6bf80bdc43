"""Find the stored result of a request without importing the tuning engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from autofit.errors import NothingFitsError
from autofit.records.events import Emit, Notice
from autofit.records.result import FailedTune, TuneRecord
from autofit.storage import result_files, validity
from autofit.tuning.request import TuneRequest

_NAMED_VERSIONS = ("tensorflow", "jax", "torch", "keras")


def reuse(request: TuneRequest, emit: Emit) -> TuneRecord | None:
    """Return a request's stored result if still valid; raise `NothingFitsError` if it says that nothing fits."""
    stored = stored_result(request)
    if stored is not None:
        emit(Notice(origin(stored)))
    if not isinstance(stored, FailedTune):
        return stored
    limit_bytes = stored.limits.device_bytes if stored.memory == "device" else stored.limits.host_bytes
    error = NothingFitsError(
        stored.memory or "host", stored.batch_size, stored.needed_bytes or 0, limit_bytes or 0, at_least=stored.at_least
    )
    error.tune = stored
    raise error


def stored_attributes(request: TuneRequest) -> Mapping[str, Any] | None:
    """Read the attributes of the request's study; None if there is no such study."""
    from autofit.storage import connection  # imported late: it imports Optuna

    return connection.attributes_of(request.settings.storage, request.fingerprint())


def stored_result(request: TuneRequest) -> TuneRecord | FailedTune | None:
    """Read the stored result of the request; return None if there is none that is valid under the present limits."""
    stored = {} if request.fresh else stored_attributes(request) or {}
    limits = validity.lowered(request.limits, stored.get(result_files.FAILED))
    try:
        result = result_files.decode(stored.get(request.result_key()))
    except ValidationError:
        return None
    return replace(result, call_source=request.call_source) if validity.result_holds(result, limits) else None


def origin(result: TuneRecord | FailedTune) -> str:
    """Describe when and on which host a stored result was measured."""
    when = f"{datetime.fromtimestamp(result.started_at):%Y-%m-%d %H:%M}"
    versions = result.description.versions if result.description is not None else {}
    named = [f"{name} {versions[name]}" for name in _NAMED_VERSIONS if name in versions]
    host = f"{result.machine.host or 'this host'} ({', '.join([result.device, *named])})"
    again = "to tune again, use --fresh (in Python, options={'fresh': True})"
    return f"using the stored result of the tune at {when} on {host}; {again}"
