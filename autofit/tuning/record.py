"""Make what a tune ends with: its record, or the error of a tune without a result."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.description import Description
from autofit.records.result import Answer, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.search.space import cost
from autofit.tuning.budget import Budget
from autofit.tuning.problem import Problem
from autofit.tuning.request import TuneRequest
from autofit.workload import accumulation, fit_options
from autofit.workload.inputs.kinds import render_kwargs
from autofit.workload.script.given import edits_for
from autofit.workload.script.identity import digest_of


def record_of(
    problem: Problem,
    log: TuneLog,
    answers: tuple[Answer, Answer | None],
    stop_reason: str,
) -> TuneRecord:
    """Make the record of a tune.

    Its answers are the fastest config, and that of the own batch size; its log has a description.
    """
    request = problem.request
    description = problem.description
    fastest, own = answers
    fastest = _with_arguments(fastest, request, description)
    same_batch = None if own is None else _with_arguments(own, request, description)
    digests = []
    if request.script is not None:
        digests.append(digest_of(request.script, None))
        for answer in filter(None, answers):
            edits = edits_for(description.places, answer.config)
            digests.append(digest_of(request.script, edits))
    present = {**description.defaults, **request.settings.baseline.values()}
    return TuneRecord(
        **vars(log),
        fastest=fastest,
        same_batch=same_batch,
        stop_reason=stop_reason,
        effective_batch_size=request.settings.effective_batch_size,
        batch_is_default="batch_size" not in present,
        digests=tuple(digests),
    )


def _with_arguments(
    answer: Answer, request: TuneRequest, description: Description
) -> Answer:
    """Return an answer with the arguments that set its config and, of a script, its code."""
    config = answer.config
    data_kwargs, tuned_kwargs = render_kwargs(description, config)
    users = fit_options.rendered(
        request.call_source.fit_kwargs,
        config.batch_size,
        request.baseline(description).batch_size,
        scale_validation="batch_size" in description.validation_knobs,
    )
    steps = accumulation.steps_of(
        config.batch_size, request.settings.effective_batch_size
    )
    code = ""
    if request.script is not None:
        # a diff, or the command line with its options
        edits = edits_for(description.places, config)
        code = edits.diff(Path.cwd())
        if edits.options:
            code += shlex.join([*shlex.split(request.script.command), *edits.options])
    return replace(
        answer,
        data_kwargs=data_kwargs,
        fit_kwargs={**tuned_kwargs, **users},
        # Keras rejects 1
        optimizer_kwargs={accumulation.NAME: steps} if steps > 1 else {},
        code=code,
    )


def no_result_error(
    problem: Problem, budget: Budget, trials: Sequence[Trial], stop_reason: str
) -> NothingFitsError | NoTrialFinishedError:
    """Make the error for a tune whose trials all failed, or whose configs all failed later."""
    ended = [trial.measurement for trial in trials]
    was_cut = all(
        m.ran_out_of_time and m.seconds < budget.max_trial_seconds for m in ended
    )
    if was_cut or not budget.seconds_left():
        return NoTrialFinishedError(
            budget.too_short(ended, f"a trial finished{_last_of(ended)}")
        )
    limits = problem.request.limits
    judged = [_under(limits, trial) for trial in trials]
    over = [trial for trial in judged if trial.measurement.outcome.is_oom]
    if over:
        return _too_large_error(
            problem, min(over, key=lambda each: cost(each.config)), stop_reason
        )
    failed = "no trial finished"
    if any(trial.samples_per_second for trial in trials):
        failed = "every config that finished failed later"
    outcomes = Counter(measured.outcome for measured in ended)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    remedy = ""
    if all(measured.ran_out_of_time for measured in ended):
        remedy = ". Raise max_trial_seconds in options"
    return NoTrialFinishedError(f"{failed} ({counts}){_last_of(ended)}{remedy}")


def _last_of(ended: Sequence[Measurement]) -> str:
    """Return why the last trial failed that did, as the end of a sentence."""
    for measured in reversed(ended):
        if measured.outcome is not Outcome.OK:
            reason = measured.evidence.reason
            return reason and f"; the last trial that failed: {reason}"
    return ""


def _too_large_error(
    problem: Problem, smallest: Trial, stop_reason: str
) -> NothingFitsError | NoTrialFinishedError:
    """Make the error for a tune in which not even the smallest config that ran fits."""
    sizes = problem.space.batch_size
    tried = smallest.config.batch_size or 0
    if not sizes or tried <= sizes[0]:
        stacks_steps = problem.description.stacks_steps
        return nothing_fits_error(problem.request, smallest, stacks_steps=stacks_steps)
    reason = smallest.measurement.evidence.reason
    oom = f"the smallest batch size tried, {tried}, ran out of memory ({reason})"
    remedy = "Raise max_seconds or max_trials to try smaller batch sizes"
    return NoTrialFinishedError(
        f"{stop_reason} before a trial finished within the limits: {oom}. {remedy}"
    )


def nothing_fits_error(
    request: TuneRequest, smallest: Trial, *, stacks_steps: bool = False
) -> NothingFitsError:
    """Make the error that says why the smallest config does not fit, and what it needs at least."""
    measured = smallest.measurement
    memory = measured.outcome.removesuffix("_oom")
    name = f"{memory}_bytes"
    limit_bytes = getattr(request.limits, name) or 0
    peak_bytes = getattr(measured, f"{memory}_peak_bytes") or 0
    # Of the device, an allocator gives no more than the limit. Host memory may also end below it:
    # /dev/shm is full, one allocation is larger than all memory, or other programs use it.
    is_exceeded = memory == "device" and not measured.evidence.outside_pool
    reason = ""
    if not is_exceeded and peak_bytes <= limit_bytes:
        reason = measured.evidence.reason
    return NothingFitsError(
        memory,
        smallest.config.batch_size,
        peak_bytes if reason else max(peak_bytes, limit_bytes),
        limit_bytes,
        reason=reason,
        is_lowered=request.lowered.get(name) == limit_bytes,
        stacked_steps=(smallest.config.steps_per_execution or 1) if stacks_steps else 1,
    )


def _under(limits: Limits, trial: Trial) -> Trial:
    """Return a trial as out of memory if it finished under limits that were higher than these."""
    measured = trial.measurement
    if measured.outcome is not Outcome.OK or trial.fits(limits):
        return trial
    is_on_host = (measured.host_peak_bytes or 0) > limits.host_bytes
    outcome = Outcome.HOST_OOM if is_on_host else Outcome.DEVICE_OOM
    evidence = Evidence("its peak is above the present limit")
    return replace(
        trial, measurement=replace(measured, outcome=outcome, evidence=evidence)
    )
