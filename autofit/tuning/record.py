"""From a finished search to its record, and from a kept record to the answer of a question that was asked before."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import AutofitError, NothingFitsError
from autofit.records.result import ConfirmingRun, FailedTune, Recommendation, TuneLog, TuneRecord
from autofit.records.trial import Description
from autofit.search import frontier
from autofit.storage import attributes, result_files
from autofit.storage.codec import METRIC
from autofit.storage.study import TuningStudy
from autofit.tuning.request import TuneRequest
from autofit.workload import accumulation
from autofit.workload.inputs.render import render_kwargs

_RUN_LISTS = TypeAdapter(tuple[ConfirmingRun, ...])


def record(
    request: TuneRequest, seen: TuneLog, description: Description, chosen: Recommendation, stop_reason: str
) -> TuneRecord:
    """All that a tune came to."""
    trials = seen.trials
    endless = description.sample_count is None
    data_kwargs, fit_kwargs = render_kwargs(description, chosen.config, request.sample_count if endless else None)
    rates = next((t.measurement for t in trials if t.config == chosen.config), None)
    compute = rates.compute_samples_per_second if rates else None
    inputs = rates.input_samples_per_second if rates else None
    validation = chosen.validation_batch_size
    if validation is not None and "batch_size" not in description.validation_knobs:
        fit_kwargs["validation_batch_size"] = validation
    return TuneRecord(
        **_fields(seen, description),
        config=chosen.config,
        fit_kwargs=fit_kwargs,
        data_kwargs=data_kwargs,
        optimizer_kwargs=accumulation.optimizer_kwargs(chosen.config.batch_size, request.effective_batch_size),
        samples_per_second=chosen.samples_per_second,
        spread=chosen.spread,
        speedup=chosen.speedup,
        confirmed=chosen.confirmed,
        device_peak_bytes=chosen.device_peak_bytes,
        host_peak_bytes=chosen.host_peak_bytes,
        bottleneck=bottleneck(chosen.samples_per_second, compute, inputs),
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        stop_reason=stop_reason,
        frontier=frontier.frontier(trials, request.limits),
        validation_batch_size=validation,
        effective_batch_size=request.effective_batch_size,
    )


def unanswered(seen: TuneLog, error: AutofitError) -> FailedTune:
    """What a tune came to that ended with an error."""
    told = {**_fields(seen, seen.description), "problem": str(error)}
    if isinstance(error, NothingFitsError):
        told |= {"memory": error.memory, "batch_size": error.batch_size}
        told |= {"needed_bytes": error.needed_bytes, "at_least": error.at_least}
    return FailedTune(**told)


def _fields(seen: TuneLog, description: Description | None) -> dict[str, Any]:
    told = {field.name: getattr(seen, field.name) for field in fields(TuneLog)}
    return {**told, "description": description}


def keep(study: TuningStudy, request: TuneRequest, found: TuneRecord | FailedTune) -> None:
    """Keep a record with the study, as the answer to this question; that nothing fits is one, too."""
    study.set_attribute(request.result_key(), result_files.encode(found))
    study.set_attribute(attributes.RUNS, [])
    chosen = "nothing fits" if isinstance(found, FailedTune) else str(found.config)
    study.set_user_attributes({"chosen": chosen, METRIC: getattr(found, "samples_per_second", None)})


def keep_runs(study: TuningStudy, runs: tuple[ConfirmingRun, ...]) -> None:
    """Keep what ran after the search, for a tune that is ended before it has its answer."""
    study.set_attribute(attributes.RUNS, _RUN_LISTS.dump_python(runs, mode="json"))


def kept_runs(study: TuningStudy) -> tuple[ConfirmingRun, ...]:
    """What an earlier tune, ended before it had its answer, ran after its search."""
    try:
        return _RUN_LISTS.validate_python(study.attribute(attributes.RUNS) or ())
    except ValidationError:
        return ()


_NOT_WAITING = 0.95  # TensorFlow's profiler calls a step that waits under 5 % of its time not input-bound
_AT_CEILING = 0.85


def bottleneck(end_to_end: float, compute: float | None, inputs: float | None) -> str:
    """What holds the rate back: "compute", "input", or "contention" when neither ceiling is reached.

    Args:
        end_to_end: samples per second of the real `fit`.
        compute: samples per second of the step on one cached batch.
        inputs: samples per second of the input pipeline alone.
    """
    if compute is None or inputs is None:
        return "unknown"
    if end_to_end >= _NOT_WAITING * compute:
        return "compute"
    lower = min(compute, inputs)
    if end_to_end < _AT_CEILING * lower:
        return "contention"
    return "compute" if compute <= inputs else "input"
