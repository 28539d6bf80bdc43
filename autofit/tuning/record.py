"""Make what a tune ends with: its record, or the error of a tune without a result."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.description import Description
from autofit.records.result import Answer, Bottleneck, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.space import cost
from autofit.tuning.budget import Budget
from autofit.tuning.problem import Problem
from autofit.tuning.request import TuneRequest
from autofit.workload import accumulation, fit_options
from autofit.workload.inputs.kinds import render_kwargs
from autofit.workload.script import Script
from autofit.workload.script.given import edits_for
from autofit.workload.script.identity import digest_of

_WAITING_SHARE = 0.05  # a step that waits for a larger share of its time is input-bound (as in TensorFlow's profiler)
_CEILING_NOISE = 0.05  # relative: ceilings are timed for half a second to a second, so they may be too low by this much
_CEILING_SHARE = 0.85  # if the rate is below this share of the lower ceiling, step and input slow each other down


def record_of(
    problem: Problem, log: TuneLog, answers: tuple[Answer, Answer | None], stop_reason: str
) -> TuneRecord:
    """Make the record of a tune from its answers: the fastest config, and that of the own batch size."""
    request, description = problem.request, problem.description
    fastest, same_batch = (
        answer and _with_arguments(answer, request, description) for answer in answers
    )
    assert fastest is not None, "a tune without an answer has no record"
    measured = [
        trial.measurement for trial in (*log.trials, *log.runs) if trial.config == fastest.config
    ]
    bottleneck, compute, inputs, run_rate = ceilings_of(fastest, measured)
    digests: tuple[str, ...] = ()
    if (script := request.script) is not None:
        fastest = replace(fastest, code=_changes(script, description, fastest))
        both = [fastest]
        if same_batch is not None:
            same_batch = replace(same_batch, code=_changes(script, description, same_batch))
            both.append(same_batch)
        edits = [edits_for(description.places, answer.config) for answer in both]
        digests = tuple(digest_of(script, each) for each in (None, *edits))
    return TuneRecord(
        **{**vars(log), "description": description},
        fastest=fastest,
        same_batch=same_batch,
        bottleneck=bottleneck,
        compute_samples_per_second=compute,
        input_samples_per_second=inputs,
        ceilings_run_samples_per_second=run_rate,
        stop_reason=stop_reason,
        effective_batch_size=request.settings.effective_batch_size,
        batch_is_default="batch_size"
        not in {**description.defaults, **request.settings.baseline.values()},
        digests=digests,
    )


def _with_arguments(answer: Answer, request: TuneRequest, description: Description) -> Answer:
    config = answer.config
    data_kwargs, tuned_kwargs = render_kwargs(description, config)
    own, written_for = request.call_source.fit_kwargs, request.baseline(description).batch_size
    scales = "batch_size" in description.validation_knobs
    users = fit_options.rendered(own, config.batch_size, written_for, scale_validation=scales)
    fit_kwargs = {**tuned_kwargs, **users}
    steps = accumulation.steps_of(config.batch_size, request.settings.effective_batch_size)
    optimizer_kwargs = {accumulation.NAME: steps} if steps > 1 else {}  # Keras rejects 1
    return replace(
        answer, data_kwargs=data_kwargs, fit_kwargs=fit_kwargs, optimizer_kwargs=optimizer_kwargs
    )


def _changes(script: Script, description: Description, answer: Answer) -> str:
    """Return what sets an answer in a script: a diff, or the command line with its options."""
    edits = edits_for(description.places, answer.config)
    command = shlex.join([*shlex.split(script.command), *edits.options]) if edits.options else ""
    return edits.diff(Path.cwd()) + command


def ceilings_of(
    answer: Answer, measured: Sequence[Measurement]
) -> tuple[Bottleneck, float | None, float | None, float | None]:
    """Return the bottleneck, the rates of step and input alone (the ceilings), and the rate of the run that read them."""
    # That run is the one whose rate is nearest to the confirmed rate; rates are in samples/s. A ceiling below the rate of
    # the whole `fit` is None, because the machine was slower when it was measured; the other ceiling then decides the
    # bottleneck.
    complete = [
        (m.samples_per_second, m.steady_samples_per_second, m.alone("compute"), m.alone("input"))
        for m in measured
        if m.samples_per_second and m.compute_samples_per_second and m.input_samples_per_second
    ]
    if not complete:
        return "unknown", None, None, None
    confirmed = answer.samples_per_second
    of_epochs, steady, *both = min(complete, key=lambda rates: abs(math.log(rates[0] / confirmed)))
    rate = steady or of_epochs
    reached = max(rate, confirmed * rate / of_epochs)
    compute, inputs = (
        one if one and one >= reached / (1 + _CEILING_NOISE) else None for one in both
    )
    bottleneck: Bottleneck = "input"
    if compute and reached >= (1 - _WAITING_SHARE) * compute:
        bottleneck = "compute"
    elif compute and inputs and reached < _CEILING_SHARE * min(compute, inputs):
        bottleneck = "contention"
    elif inputs and (compute <= inputs if compute else reached < _CEILING_SHARE * inputs):
        bottleneck = "compute"
    elif not compute and not inputs:
        bottleneck = "unknown"
    return bottleneck, compute, inputs, rate


def no_result_error(
    problem: Problem, budget: Budget, trials: Sequence[Trial], stop_reason: str
) -> NothingFitsError | NoTrialFinishedError:
    """Make the error for a tune in which no trial finished, or every config that finished failed later."""
    sizes = problem.space.batch_size
    ended = [trial.measurement for trial in trials]
    last = next((m.evidence.reason for m in reversed(ended) if m.outcome is not Outcome.OK), "")
    last = last and f"; the last trial that failed: {last}"
    was_cut = all(m.ran_out_of_time and m.seconds < budget.max_trial_seconds for m in ended)
    if not budget.seconds_left() or was_cut:
        return NoTrialFinishedError(budget.too_short(ended, f"a trial finished{last}"))
    limits = problem.request.limits
    too_large = [
        t for t in (_under(limits, trial) for trial in trials) if t.measurement.outcome.is_oom
    ]
    if too_large:
        smallest = min(too_large, key=lambda trial: cost(trial.config))
        tried = smallest.config.batch_size or 0
        if not sizes or tried <= sizes[0]:
            stacks = problem.description.stacks_steps
            return nothing_fits_error(problem.request, smallest, stacks_steps=stacks)
        oom = f"the smallest batch size tried, {tried}, ran out of memory ({smallest.measurement.evidence.reason})"
        remedy = "Raise max_seconds or max_trials to try smaller batch sizes"
        return NoTrialFinishedError(
            f"{stop_reason} before a trial finished within the limits: {oom}. {remedy}"
        )
    counts = ", ".join(
        f"{count} {outcome}" for outcome, count in Counter(m.outcome for m in ended).items()
    )
    failed = (
        "every config that finished failed later"
        if any(t.samples_per_second for t in trials)
        else "no trial finished"
    )
    remedy = ". Raise max_trial_seconds in options" if all(m.ran_out_of_time for m in ended) else ""
    return NoTrialFinishedError(f"{failed} ({counts or stop_reason}){last}{remedy}")


def nothing_fits_error(
    request: TuneRequest, smallest: Trial, *, stacks_steps: bool = False
) -> NothingFitsError:
    """Make the error that says why the smallest config does not fit, and how much memory it needs at least."""
    measured = smallest.measurement
    memory = measured.outcome.removesuffix("_oom")
    limit_bytes = getattr(request.limits, f"{memory}_bytes") or 0
    peak_bytes = getattr(measured, f"{memory}_peak_bytes") or 0
    is_lowered = request.lowered.get(f"{memory}_bytes") == limit_bytes
    # Of the device, an allocator gives no more than the limit. Host memory may also end below it:
    # /dev/shm is full, one allocation is larger than all memory, or other programs use it.
    is_exceeded = memory == "device" and not measured.evidence.outside_pool
    reason = "" if is_exceeded or peak_bytes > limit_bytes else measured.evidence.reason
    return NothingFitsError(
        memory,
        smallest.config.batch_size,
        peak_bytes if reason else max(peak_bytes, limit_bytes),
        limit_bytes,
        reason=reason,
        is_lowered=is_lowered,
        stacked_steps=(smallest.config.steps_per_execution or 1) if stacks_steps else 1,
    )


def _under(limits: Limits, trial: Trial) -> Trial:
    """Return a trial as out of memory if it finished under limits that were higher than these."""
    measured = trial.measurement
    if measured.outcome is not Outcome.OK or trial.fits(limits):
        return trial
    on_host = (measured.host_peak_bytes or 0) > limits.host_bytes
    outcome = Outcome.HOST_OOM if on_host else Outcome.DEVICE_OOM
    evidence = Evidence("its peak is above the present limit")
    return replace(trial, measurement=replace(measured, outcome=outcome, evidence=evidence))
