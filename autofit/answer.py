"""From a finished search to its record, and from a kept record to the answer of a question that was asked before."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit import accumulation, frontier, history
from autofit.errors import AutofitError, NothingFitsError
from autofit.inputs import render_kwargs
from autofit.question import Question
from autofit.records import Description
from autofit.report import files
from autofit.results import Recommendation, Run, Seen, TuningRecord, Unanswered
from autofit.study import TuningStudy

_NAMED = ("tensorflow", "keras")
_RUN_LISTS = TypeAdapter(tuple[Run, ...])


def record(q: Question, seen: Seen, description: Description, chosen: Recommendation, stop_reason: str) -> TuningRecord:
    """All that a tune came to."""
    trials = seen.trials
    endless = description.sample_count is None
    data_kwargs, fit_kwargs = render_kwargs(description, chosen.config, q.sample_count if endless else None)
    rates = next((t.measurement for t in trials if t.config == chosen.config), None)
    measured = rates.samples_per_second if rates else None
    compute = rates.compute_samples_per_second if rates else None
    inputs = rates.input_samples_per_second if rates else None
    validation = chosen.validation_batch_size
    if validation is not None and "batch_size" not in description.validation_knobs:
        fit_kwargs["validation_batch_size"] = validation
    return TuningRecord(
        **_fields(seen, description),
        config=chosen.config,
        fit_kwargs=fit_kwargs,
        data_kwargs=data_kwargs,
        optimizer_kwargs=accumulation.optimizer_kwargs(chosen.config.batch_size, q.effective_batch_size),
        samples_per_second=chosen.samples_per_second,
        spread=chosen.spread,
        speedup=chosen.speedup,
        confirmed=chosen.confirmed,
        device_peak_bytes=chosen.device_peak_bytes,
        host_peak_bytes=chosen.host_peak_bytes,
        bottleneck=frontier.bottleneck(measured or 0.0, compute, inputs),
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        stop_reason=stop_reason,
        frontier=frontier.frontier(trials, q.limits),
        validation_batch_size=validation,
    )


def unanswered(seen: Seen, error: AutofitError) -> Unanswered:
    """What a tune came to that ended with an error."""
    told = {**_fields(seen, seen.description), "problem": str(error)}
    if isinstance(error, NothingFitsError):
        told |= {"memory": error.memory, "batch_size": error.batch_size}
        told |= {"needed_bytes": error.needed_bytes, "at_least": error.at_least}
    return Unanswered(**told)


def _fields(seen: Seen, description: Description | None) -> dict[str, Any]:
    told = {field.name: getattr(seen, field.name) for field in fields(Seen)}
    return {**told, "description": description}


def keep(study: TuningStudy, q: Question, found: TuningRecord | Unanswered) -> None:
    """Keep a record with the study, as the answer to this question; that nothing fits is one, too."""
    study.note(history.RECORD, files.encode(found))
    study.note(history.ASKED, q.budget())
    study.note(history.RUNS, [])
    chosen = "nothing fits" if isinstance(found, Unanswered) else str(found.config)
    study.tell({"chosen": chosen, "samples per second": getattr(found, "samples_per_second", None)})


def keep_runs(study: TuningStudy, runs: tuple[Run, ...]) -> None:
    """Keep what ran after the search, for a tune that is ended before it has its answer."""
    study.note(history.RUNS, _RUN_LISTS.dump_python(runs, mode="json"))


def kept_runs(study: TuningStudy) -> tuple[Run, ...]:
    """What an earlier tune, ended before it had its answer, ran after its search."""
    try:
        return _RUN_LISTS.validate_python(study.noted(history.RUNS) or ())
    except ValidationError:
        return ()


def kept(q: Question) -> TuningRecord | Unanswered | None:
    """The answer of an earlier tune to the same question, if there is one that holds under the limits as they are now.

    Raises:
        StorageError: the storage cannot be read.
    """
    noted = None if q.fresh else history.noted(q.storage, q.fingerprint())
    if noted is None or noted.get(history.ASKED) != q.budget():
        return None
    try:
        found = files.decode(noted.get(history.RECORD))
    except ValidationError:
        return None
    if isinstance(found, Unanswered):
        now, then = (
            limits.device_bytes if found.memory == "device" else limits.host_bytes for limits in (q.limits, found.limits)
        )
        return found if now is not None and then is not None and now <= then else None
    device, host = found.device_peak_bytes or 0, found.host_peak_bytes or 0
    fits = host <= q.limits.host_bytes and (q.limits.device_bytes is None or device <= q.limits.device_bytes)
    return found if fits else None


def nothing_fits(found: Unanswered) -> NothingFitsError:
    """The error that an earlier tune ended with."""
    limit = found.limits.device_bytes if found.memory == "device" else found.limits.host_bytes
    error = NothingFitsError(
        found.memory or "host", found.batch_size, found.needed_bytes or 0, limit or 0, at_least=found.at_least
    )
    error.seen = found
    return error


def origin(found: TuningRecord | Unanswered) -> str:
    """From when an answer is, and on what it was found."""
    when = f"{datetime.fromtimestamp(found.started_at):%Y-%m-%d %H:%M}"
    told = found.description.versions if found.description is not None else {}
    versions = [f"{name} {version}" for name, version in told.items() if name in _NAMED]
    place = f"{found.machine.host or 'this host'} ({', '.join([found.device, *versions])})"
    return f"answered from the tune of {when} on {place}; ask anew with --fresh"
