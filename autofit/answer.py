"""From a finished search to its record, and from a kept record to the answer of a question that was asked before."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit import accumulation, frontier, places
from autofit.errors import AutofitError, NothingFitsError
from autofit.inputs import render_kwargs
from autofit.question import Question
from autofit.records import Description
from autofit.report import files
from autofit.results import Recommendation, Run, Seen, TuningRecord, Unanswered
from autofit.stored import METRIC
from autofit.study import TuningStudy

_RUN_LISTS = TypeAdapter(tuple[Run, ...])


def record(q: Question, seen: Seen, description: Description, chosen: Recommendation, stop_reason: str) -> TuningRecord:
    """All that a tune came to."""
    trials = seen.trials
    endless = description.sample_count is None
    data_kwargs, fit_kwargs = render_kwargs(description, chosen.config, q.sample_count if endless else None)
    rates = next((t.measurement for t in trials if t.config == chosen.config), None)
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
        bottleneck=frontier.bottleneck(chosen.samples_per_second, compute, inputs),
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        stop_reason=stop_reason,
        frontier=frontier.frontier(trials, q.limits),
        validation_batch_size=validation,
        effective_batch_size=q.effective_batch_size,
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
    study.note(q.answer_key(), files.encode(found))
    study.note(places.RUNS, [])
    chosen = "nothing fits" if isinstance(found, Unanswered) else str(found.config)
    study.tell({"chosen": chosen, METRIC: getattr(found, "samples_per_second", None)})


def keep_runs(study: TuningStudy, runs: tuple[Run, ...]) -> None:
    """Keep what ran after the search, for a tune that is ended before it has its answer."""
    study.note(places.RUNS, _RUN_LISTS.dump_python(runs, mode="json"))


def kept_runs(study: TuningStudy) -> tuple[Run, ...]:
    """What an earlier tune, ended before it had its answer, ran after its search."""
    try:
        return _RUN_LISTS.validate_python(study.noted(places.RUNS) or ())
    except ValidationError:
        return ()
