"""Make what a tune ends with: its record, or the error of a tune without a result; and store it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autofit.errors import AutofitError, NothingFitsError, NoTrialFinishedError
from autofit.records.description import Description
from autofit.records.events import Activity
from autofit.records.result import Answer, Bottleneck, FailedTune, TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Measurement, Trial
from autofit.records.units import format_seconds
from autofit.search.space import cost
from autofit.storage import result_files
from autofit.storage.codec import METRIC
from autofit.storage.study import TuningStudy
from autofit.tuning.problem import Problem
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner
from autofit.workload import accumulation, fit_options
from autofit.workload.inputs.kinds import render_kwargs

_FIRST_STEPS = [phase for phase in Phase if phase.is_first]
_WAITING_SHARE = 0.05  # a step that waits for a larger share of its time is input-bound (as in TensorFlow's profiler)
_CEILING_NOISE = 0.05  # relative: ceilings are timed for half a second to a second, so they may be too low by this much
_CEILING_SHARE = 0.85  # if the rate is below this share of the lower ceiling, step and input slow each other down


def record_of(problem: Problem, log: TuneLog, answers: tuple[Answer, Answer | None], stop_reason: str) -> TuneRecord:
    """Make the record of a tune from its answers: the fastest config, and that of the own batch size."""
    request, description = problem.request, problem.description
    fastest, same_batch = (None if answer is None else _with_arguments(answer, request, description) for answer in answers)
    assert fastest is not None, "a tune without an answer has no record"
    measured = [trial.measurement for trial in (*log.trials, *log.runs) if trial.config == fastest.config]
    bottleneck, compute, inputs, run_rate = ceilings_of(fastest, measured)
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
        untuned={"batch_size": description.fixed_batch_size_reason} if description.fixed_batch_size is not None else {},
        batch_is_default="batch_size" not in {**description.defaults, **request.settings.baseline.values()},
    )


def _with_arguments(answer: Answer, request: TuneRequest, description: Description) -> Answer:
    config, validation_knobs = answer.config, description.validation_knobs
    data_kwargs, tuned_kwargs = render_kwargs(description, config)
    users = fit_options.rendered(
        request.call_source.fit_kwargs,
        config.batch_size,
        request.baseline(description).batch_size,
        scale_validation="batch_size" in validation_knobs,
    )
    fit_kwargs = {**tuned_kwargs, **users}
    if answer.validation_batch_size is not None and "batch_size" not in validation_knobs:
        fit_kwargs["validation_batch_size"] = answer.validation_batch_size
    optimizer_kwargs = accumulation.optimizer_kwargs(config.batch_size, request.settings.effective_batch_size)
    return replace(answer, data_kwargs=data_kwargs, fit_kwargs=fit_kwargs, optimizer_kwargs=optimizer_kwargs)


def failed_tune(log: TuneLog, error: AutofitError) -> FailedTune:
    """Make the record of a tune that ended with an error."""
    needed = ("memory", "batch_size", "needed_bytes", "at_least") if isinstance(error, NothingFitsError) else ()
    return FailedTune(**vars(log), problem=str(error), **{name: getattr(error, name) for name in needed})


def store(study: TuningStudy, request: TuneRequest, result: TuneRecord | FailedTune) -> None:
    """Store a record as the result of a request, also if the result is that nothing fits."""
    study.set_attribute(request.result_key(), result_files.encode(result))
    study.set_attribute(result_files.RUNS, [])
    chosen, rate = "nothing fits", None
    if isinstance(result, TuneRecord):
        chosen, rate = str(result.config), result.samples_per_second
    study.set_labels({"chosen": chosen, METRIC: rate})


def ceilings_of(
    answer: Answer, measured: Sequence[Measurement]
) -> tuple[Bottleneck, float | None, float | None, float | None]:
    """Return the bottleneck, the rates of step and input alone (the ceilings), and the rate of the run that read them."""
    # That run is the one whose rate is nearest to the confirmed rate; rates are in samples/s. A ceiling below the rate of
    # the whole `fit` is None, because the machine was slower when it was measured; the other ceiling then decides the
    # bottleneck.
    complete = [
        (m.samples_per_second, m.compute_samples_per_second, m.input_samples_per_second, m.steady_samples_per_second)
        for m in measured
        if m.samples_per_second and m.compute_samples_per_second and m.input_samples_per_second
    ]
    if not complete:
        return "unknown", None, None, None
    confirmed = answer.samples_per_second
    of_epochs, compute, inputs, steady = min(complete, key=lambda rates: abs(math.log(rates[0] / confirmed)))
    rate = steady or of_epochs
    reached = max(rate, confirmed * rate / of_epochs)
    compute_holds, input_holds = (ceiling >= reached / (1 + _CEILING_NOISE) for ceiling in (compute, inputs))
    if compute_holds and input_holds:
        bottleneck = decide_bottleneck(reached, compute, inputs)
    elif compute_holds:
        bottleneck = "compute" if reached >= (1 - _WAITING_SHARE) * compute else "input"
    elif input_holds:
        bottleneck = "input" if reached >= _CEILING_SHARE * inputs else "compute"
    else:
        bottleneck = "unknown"
    return bottleneck, compute if compute_holds else None, inputs if input_holds else None, rate


def decide_bottleneck(end_to_end: float, compute: float, inputs: float) -> Bottleneck:
    """Find what limits the rate of `fit`: the step or the input alone, or, if it reaches neither rate, contention."""
    if end_to_end >= (1 - _WAITING_SHARE) * compute:
        return "compute"
    if end_to_end < _CEILING_SHARE * min(compute, inputs):
        return "contention"
    return "compute" if compute <= inputs else "input"


def no_result_error(
    problem: Problem, runner: TrialRunner, trials: Sequence[Trial], earlier: int
) -> NothingFitsError | NoTrialFinishedError:
    """Make the error for a tune in which no trial finished, or every config that finished failed later.

    The first `earlier` trials were run by an earlier tune.
    """
    budget, sizes, compiler = runner.budget, problem.space.batch_size, problem.description.compiler
    if not budget.seconds_left():
        last = f"; the last trial: {trials[-1].measurement.evidence.reason}" if trials else ""
        return NoTrialFinishedError(f"{budget.out_of_time()} before a trial finished{last}. Raise max_seconds")
    ooms = [trial for trial in trials if trial.measurement.outcome.is_oom]
    if ooms:
        smallest = min(ooms, key=lambda trial: cost(trial.config))
        tried = smallest.config.batch_size or 0
        spent = budget.stop_reason(budget.plan(trials, problem), trials, problem.settings.max_trials)
        if spent is not None and sizes and tried > sizes[0]:
            return NoTrialFinishedError(
                f"{spent} before a trial finished: the smallest batch size tried, {tried}, ran out of memory "
                f"({smallest.measurement.evidence.reason}). Raise max_seconds or max_trials to try smaller batch sizes"
            )
        return nothing_fits_error(runner, smallest)
    if not trials:
        return NoTrialFinishedError("no trial was started")
    ended = [trial.measurement for trial in trials]
    if compiler and all(m.ran_out_of_time and m.evidence.phase in _FIRST_STEPS for m in ended):
        seconds = format_seconds(min(max(m.phase_seconds.get(phase, 0.0) for phase in _FIRST_STEPS) for m in ended))
        return NoTrialFinishedError(
            f"no trial finished: in each, {compiler} was still compiling the first step after {seconds}. Raise "
            f"max_trial_seconds in options, or set jit_compile: false to train without {compiler}"
        )
    tally = Counter(measurement.outcome for measurement in ended)
    counts = ", ".join(f"{tally[outcome]} {outcome}" for outcome in Outcome if tally[outcome])
    of_earlier = f"; {earlier} from an earlier tune: use --fresh to delete these" if earlier else ""
    failed = "every config that finished in the search failed later" if tally[Outcome.OK] else "no trial finished"
    return NoTrialFinishedError(f"{failed} ({counts}{of_earlier}); the last trial: {ended[-1].evidence.reason}")


def nothing_fits_error(runner: TrialRunner, smallest: Trial) -> NothingFitsError:
    """Make the error that says how much memory the smallest config needs."""
    request, failed, size = runner.request, smallest.measurement, smallest.config.batch_size
    if failed.outcome is not Outcome.DEVICE_OOM:
        limit_bytes = request.limits.host_bytes
        return NothingFitsError("host", size, max(failed.host_peak_bytes or 0, limit_bytes), limit_bytes, at_least=True)
    limit_bytes = request.limits.device_bytes or 0
    gpus = request.placement.gpus
    free_bytes = min(gpu.free_bytes for gpu in gpus) if gpus else request.machine.available_bytes
    # the limit of host memory stays, because a process beyond it may make the machine fail
    lifted = replace(request.limits, device_bytes=free_bytes if request.limits.device_bytes else None)
    activity = Activity("measuring the memory of the smallest batch", smallest.config)
    measurement = runner.measure(smallest.config, activity, lifted)
    # The config needs more than the limit, but the peaks may be lower: only the failed run may have validated, and a run
    # that runs out of memory reads no peak above its limit.
    needed_bytes = max(measurement.device_peak_bytes or 0, failed.device_peak_bytes or 0, limit_bytes)
    at_least = measurement.outcome is not Outcome.OK or needed_bytes <= limit_bytes
    return NothingFitsError("device", size, needed_bytes, limit_bytes, at_least=at_least)
