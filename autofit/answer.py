"""From a finished search to its record, and from a kept record to the answer of a question that was asked before."""

from __future__ import annotations

from pydantic import ValidationError

from autofit import accumulation, frontier
from autofit.inputs import render_kwargs
from autofit.question import Question
from autofit.records import Description, Trial
from autofit.report import files
from autofit.results import Recommendation, TuningRecord
from autofit.study import TuningStudy

_RECORD, _ASKED = "record", "asked"


def record(
    q: Question,
    trials: tuple[Trial, ...],
    description: Description,
    chosen: Recommendation,
    stop_reason: str,
    seconds: float,
) -> TuningRecord:
    """All that a tune came to."""
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
        limits=q.limits,
        bottleneck=frontier.bottleneck(measured or 0.0, compute, inputs),
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        stop_reason=stop_reason,
        machine=q.machine,
        device=q.device_name,
        description=description,
        frontier=frontier.frontier(trials, q.limits),
        trials=trials,
        seconds=seconds,
        usage=q.usage,
        validation_batch_size=validation,
    )


def keep(study: TuningStudy, q: Question, found: TuningRecord) -> None:
    """Keep a record with the study, as the answer to this question."""
    study.note(_RECORD, files.encode(found))
    study.note(_ASKED, q.budget())


def kept(study: TuningStudy, q: Question) -> TuningRecord | None:
    """The answer of an earlier tune to the same question, if there is one."""
    if study.noted(_ASKED) != q.budget():
        return None
    try:
        found = files.decode(study.noted(_RECORD))
    except ValidationError:
        return None
    device, host = found.device_peak_bytes or 0, found.host_peak_bytes or 0
    fits = host <= q.limits.host_bytes and (q.limits.device_bytes is None or device <= q.limits.device_bytes)
    return found if fits else None
