"""Make the error of a tune that has no result, because nothing fits or no trial finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autofit.errors import NothingFitsError, NoTrialFinishedError
from autofit.records.events import Activity
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Trial
from autofit.records.units import format_seconds
from autofit.search.space import cost
from autofit.tuning.budget import Budget
from autofit.tuning.problem import Problem
from autofit.tuning.runner import TrialRunner

_FIRST_STEPS = [phase for phase in Phase if phase.is_first]


def no_result_error(
    problem: Problem, runner: TrialRunner, trials: Sequence[Trial], earlier: int
) -> NothingFitsError | NoTrialFinishedError:
    """Make the error for a tune in which no trial finished, or every config that finished failed later.

    The first `earlier` trials were run by an earlier tune.
    """
    budget, sizes, compiler = runner.budget, problem.space.batch_size, problem.description.compiler
    if not budget.seconds_left():
        last = f"; the last trial: {trials[-1].measurement.evidence.reason}" if trials else ""
        return out_of_time_error(budget, f"a trial finished{last}")
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
    if compiler and trials and all(_ended_compiling(trial) for trial in trials):
        compiling = (max(t.measurement.phase_seconds.get(phase, 0.0) for phase in _FIRST_STEPS) for t in trials)
        seconds = format_seconds(min(compiling))
        which = "the only trial" if len(trials) == 1 else f"each of {len(trials)} trials"
        return NoTrialFinishedError(
            f"no trial finished: in {which}, {compiler} was still compiling the first step after {seconds}. Raise "
            f"max_trial_seconds in options, or set jit_compile: false to train without {compiler}"
        )
    if not trials:
        return NoTrialFinishedError("no trial was started")
    tally = Counter(trial.measurement.outcome for trial in trials)
    counts = ", ".join(f"{tally[outcome]} {outcome}" for outcome in Outcome if tally[outcome])
    of_earlier = f"; {earlier} from an earlier tune: use --fresh to delete these" if earlier else ""
    failed = "every config that finished in the search failed later" if tally[Outcome.OK] else "no trial finished"
    return NoTrialFinishedError(
        f"{failed} ({counts}{of_earlier}); the last trial: {trials[-1].measurement.evidence.reason}"
    )


def _ended_compiling(trial: Trial) -> bool:
    return trial.measurement.ran_out_of_time and trial.measurement.evidence.phase in _FIRST_STEPS


def out_of_time_error(budget: Budget, before: str) -> NoTrialFinishedError:
    """Make the error for a tune that ran out of time; `before` says before what, such as "a trial finished"."""
    return NoTrialFinishedError(f"{budget.out_of_time()} before {before}. Raise max_seconds")


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
