"""Answer from what is kept, or ask: the loop of `tuner`, loaded only where a question has no answer yet."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from autofit.errors import NothingFitsError
from autofit.records.events import Event, Notice
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.trial import Limits, Outcome
from autofit.storage import attributes, result_files, urls
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest

_NAMED = ("tensorflow", "keras")
_MORE = 1.05  # times a limit: more may have another answer, if the limit had a part in it
_NEAR = 0.5  # of a limit: a search that came nearer may have been held back by it


def tune(request: TuneRequest, launcher: Launcher) -> Generator[Event, None, TuneRecord]:
    """Find the fastest config that fits, and prove it; or say again what was found before.

    Raises:
        NothingFitsError: not even the smallest batch fits, now or in an earlier tune under no smaller limits.
        AutofitError: as `tuner.tune`.
    """
    found = cached(request)
    if isinstance(found, TuneRecord):
        yield Notice(origin(found))
        return found
    if found is not None:
        yield Notice(origin(found))
        raise _nothing_fits(found)
    from autofit.tuning import tuner  # loads Optuna and SciPy: a second that a known answer need not wait for

    return (yield from tuner.tune(request, launcher))


def stored_attributes(request: TuneRequest) -> Mapping[str, Any] | None:
    """What is kept with a question's study; None where it was not asked before.

    Raises:
        StorageError: the storage cannot be read.
    """
    where, name = request.storage, request.fingerprint()
    if not urls.is_there(where):
        return None
    found = attributes.read_quickly(where, name)
    if found is not None:
        return found
    from autofit.storage import past_tunes  # loads Optuna

    return past_tunes.attributes_of(where, name)


def cached(request: TuneRequest) -> TuneRecord | FailedTune | None:
    """The answer of an earlier tune to the same question, if there is one that holds under the limits as they are now.

    Raises:
        StorageError: the storage cannot be read.
    """
    told = None if request.fresh else stored_attributes(request)
    try:
        found = result_files.decode((told or {}).get(request.result_key()))
    except ValidationError:
        return None
    if isinstance(found, FailedTune):
        now, then = (
            limits.device_bytes if found.memory == "device" else limits.host_bytes
            for limits in (request.limits, found.limits)
        )
        return found if now is not None and then is not None and now <= then else None
    return replace(found, usage=request.usage) if _holds(found, request.limits) else None


def _holds(found: TuneRecord, now: Limits) -> bool:
    """Whether an answer fits the limits as they are now, and they are not so much wider that a larger batch might win."""
    then, ended = found.limits, [trial.measurement for trial in found.trials]
    device = now.device_bytes is None or (found.device_peak_bytes or 0) <= now.device_bytes
    if not device or (found.host_peak_bytes or 0) > now.host_bytes:
        return False
    held_back = []
    if now.device_bytes is not None and then.device_bytes is not None and now.device_bytes > _MORE * then.device_bytes:
        near = _NEAR * then.device_bytes
        held_back += [m.outcome is Outcome.DEVICE_OOM or (m.device_peak_bytes or 0) > near for m in ended]
    if now.host_bytes > _MORE * then.host_bytes:
        near = _NEAR * then.host_bytes
        held_back += [m.outcome is Outcome.HOST_OOM or (m.host_peak_bytes or 0) > near for m in ended]
    return not any(held_back)


def origin(found: TuneRecord | FailedTune) -> str:
    """From when an answer is, and on what it was found."""
    when = f"{datetime.fromtimestamp(found.started_at):%Y-%m-%d %H:%M}"
    told = found.description.versions if found.description is not None else {}
    versions = [f"{name} {version}" for name, version in told.items() if name in _NAMED]
    place = f"{found.machine.host or 'this host'} ({', '.join([found.device, *versions])})"
    return f"answered from the tune of {when} on {place}; ask anew with --fresh"


def _nothing_fits(found: FailedTune) -> NothingFitsError:
    """The error that an earlier tune ended with."""
    limit = found.limits.device_bytes if found.memory == "device" else found.limits.host_bytes
    error = NothingFitsError(
        found.memory or "host", found.batch_size, found.needed_bytes or 0, limit or 0, at_least=found.at_least
    )
    error.seen = found
    return error
