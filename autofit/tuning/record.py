"""Make the record of a tune, and store it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from autofit.errors import AutofitError, NothingFitsError
from autofit.records.result import Bottleneck, FailedTune, Recommendation, TuneLog, TuneRecord
from autofit.records.trial import Description
from autofit.search import frontier
from autofit.storage import attributes, result_files
from autofit.storage.codec import METRIC
from autofit.storage.study import TuningStudy
from autofit.tuning.request import TuneRequest
from autofit.workload import accumulation, fit_options
from autofit.workload.inputs.render import render_kwargs

_WAITING_SHARE = 0.05  # of a step: TensorFlow's profiler calls a step that waits less not input-bound
_CEILING_SHARE = 0.85  # of the lower ceiling: a rate below it is limited by both sides together


def record(
    request: TuneRequest, log: TuneLog, description: Description, choice: Recommendation, stop_reason: str
) -> TuneRecord:
    """Make the record of a tune with a result."""
    settings, config = request.settings, choice.config
    endless = description.sample_count is None
    data_kwargs, tuned_kwargs = render_kwargs(description, config, settings.sample_count if endless else None)
    users = fit_options.rendered(
        request.usage.fit_kwargs,
        config.batch_size,
        request.baseline(description).batch_size,
        scale_validation="batch_size" in description.validation_knobs,
    )
    fit_kwargs = {**tuned_kwargs, **users}
    if choice.validation_batch_size is not None and "batch_size" not in description.validation_knobs:
        fit_kwargs["validation_batch_size"] = choice.validation_batch_size
    measured = next((trial.measurement for trial in log.trials if trial.config == config), None)
    compute = measured.compute_samples_per_second if measured else None
    inputs = measured.input_samples_per_second if measured else None
    return TuneRecord(
        **{**_fields(log), "description": description},
        choice=choice,
        fit_kwargs=fit_kwargs,
        data_kwargs=data_kwargs,
        optimizer_kwargs=accumulation.optimizer_kwargs(config.batch_size, settings.effective_batch_size),
        bottleneck=decide_bottleneck(choice.samples_per_second, compute, inputs),
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        stop_reason=stop_reason,
        frontier=frontier.frontier(log.trials, request.limits),
        effective_batch_size=settings.effective_batch_size,
    )


def failed_tune(log: TuneLog, error: AutofitError) -> FailedTune:
    """Make the record of a tune that ended with an error."""
    if not isinstance(error, NothingFitsError):
        return FailedTune(**_fields(log), problem=str(error))
    return FailedTune(
        **_fields(log),
        problem=str(error),
        memory=error.memory,
        batch_size=error.batch_size,
        needed_bytes=error.needed_bytes,
        at_least=error.at_least,
    )


def _fields(log: TuneLog) -> dict[str, Any]:
    return {field.name: getattr(log, field.name) for field in fields(TuneLog)}


def store(study: TuningStudy, request: TuneRequest, result: TuneRecord | FailedTune) -> None:
    """Store a record as the result of a request, also if nothing fits."""
    study.set_attribute(request.result_key(), result_files.encode(result))
    study.set_attribute(attributes.RUNS, [])
    chosen, rate = ("nothing fits", None)
    if isinstance(result, TuneRecord):
        chosen, rate = str(result.config), result.samples_per_second
    study.set_user_attributes({"chosen": chosen, METRIC: rate})


def decide_bottleneck(end_to_end: float, compute: float | None, inputs: float | None) -> Bottleneck:
    """What limits the rate; contention if it reaches neither ceiling.

    Args:
        end_to_end: samples per second of the real `fit`.
        compute: samples per second of the step on one cached batch.
        inputs: samples per second of the input pipeline alone.
    """
    if compute is None or inputs is None:
        return Bottleneck.UNKNOWN
    if end_to_end >= (1 - _WAITING_SHARE) * compute:
        return Bottleneck.COMPUTE
    if end_to_end < _CEILING_SHARE * min(compute, inputs):
        return Bottleneck.CONTENTION
    return Bottleneck.COMPUTE if compute <= inputs else Bottleneck.INPUT
