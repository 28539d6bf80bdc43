"""Tell where the time of an epoch goes, and what would shorten it: the first minute of a tune.

    describe ──> the baseline ──> up to two changes, of what takes most of an epoch ──> the parts
                                                                                    and remedies

The trials are those of a search, with the same readings, and are stored as such: the tune after it
goes on with them. A saved tune has them already. The exception is a trial of `jit_compile`, which
is not a knob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.records.epoch import Epoch, EpochRecord, epoch_of
from autofit.records.events import Activity, Emit
from autofit.records.knobs import STEPS_PER_EXECUTION, FitConfig
from autofit.records.states import Phase, Stage
from autofit.records.trial import Trial
from autofit.search.frontier import FrontierSearch
from autofit.trial.launcher import Launcher
from autofit.tuning.engine import Engine, start
from autofit.tuning.policy import Run
from autofit.tuning.problem import Problem
from autofit.tuning.record import no_result_error
from autofit.tuning.remedies import LEAST_SHARE, explain
from autofit.tuning.request import TuneRequest

_MOST_CHANGES = 2
# predicted gain in log rate (0.02 is 2 %) from which on a change is tried: the usual tolerance
_LEAST_GAIN = 0.02
# what Keras does between steps takes milliseconds: it does not matter beside a longer step
_SHORT_STEP_SECONDS = 0.05
# longest call of several steps: a trial takes several of them
_LONGEST_CALL_SECONDS = 1.0
# A change is tried until this time, plus twice what a trial takes up to its second step. The
# question then ends within a minute, plus three times that.
_SECONDS = 45.0
_BEFORE_STEPS = (Phase.LOADING, Phase.OPENING, Phase.BUILDING, Phase.FIRST_STEP)


def why(request: TuneRequest, launcher: Launcher, emit: Emit) -> EpochRecord:
    """Run the baseline and what may shorten its epochs, and say where their time goes."""
    most = {"max_trials": 1 + _MOST_CHANGES}
    request = replace(request, settings=request.settings.model_copy(update=most))
    with start(request, launcher, emit) as (engine, problem):
        _run_baseline(engine, problem)
        for _ in range(_MOST_CHANGES):
            config = _change(problem, engine.study.trials())
            if config is None or not _has_time(engine, problem):
                break
            _run(engine, problem, config, "may shorten an epoch")
        compiled = _compiled(engine, problem)
        return explain(engine.log(), problem.baseline, compiled)


def _run_baseline(engine: Engine, problem: Problem) -> None:
    """Run the baseline, unless a reading that nothing disturbed tells what an epoch takes."""
    baseline = problem.baseline
    if any(_is_whole(trial, problem) for trial in engine.study.trials()):
        return
    why = "your present configuration"
    _run(engine, problem, baseline, why)
    readings = engine.study.trials()
    if not any(t.config == baseline and t.samples_per_second for t in readings):
        reason = f"{why} did not finish"
        raise no_result_error(problem, engine.runner.budget, readings, reason)


def _run(engine: Engine, problem: Problem, config: FitConfig, why: str) -> None:
    """Run a config like a trial of the search that also reads the epoch."""
    step = Run(config, Stage.SEARCH, why, math.inf, reads_epoch=True)
    engine.run(problem, step)


def _is_whole(trial: Trial, problem: Problem) -> bool:
    """Return whether a trial of the baseline has read the start of an epoch, if it can be read."""
    measured = trial.measurement
    # a further run of a tune does not time the step alone
    if trial.config != problem.baseline or not measured.compute_samples_per_second:
        return False
    is_unknown = problem.description.sample_count is None
    return not measured.is_disturbed and (is_unknown or not measured.epoch_gap_unread)


def _has_time(engine: Engine, problem: Problem) -> bool:
    """Return whether another trial would end within a minute, and within `max_seconds`."""
    budget = engine.runner.budget
    run = epoch_of(problem.description, problem.baseline, engine.study.trials()).run
    before = sum(run.phase_seconds.get(phase, 0.0) for phase in _BEFORE_STEPS)
    if budget.seconds() > _SECONDS + 2 * before:
        return False
    return budget.seconds_left() > run.seconds


def _compiled(engine: Engine, problem: Problem) -> Trial | None:
    """Measure the baseline with a compiled step, where the step takes most of an epoch."""
    description = problem.description
    epoch = epoch_of(description, problem.baseline, engine.study.trials())
    takes_long = BACKENDS[description.backend].compile_seconds > 0
    if description.jit_compile or takes_long or not _has_time(engine, problem):
        return None
    if epoch.cause_over(description.epochs) != "step":
        return None
    doing = Activity("timing the step with jit_compile", problem.baseline)
    return engine.runner.measure(
        problem.baseline, doing, reads_epoch=True, jit_compile=True
    )


def _change(problem: Problem, readings: Sequence[Trial]) -> FitConfig | None:
    """Return a config that may shorten what takes most of an epoch, and has not been tried."""
    epoch = epoch_of(problem.description, problem.baseline, readings)
    if epoch.run.is_disturbed:
        # a trial would measure the other work as well as the change
        return None
    parts = epoch.parts
    # fewer workers start sooner
    waiting = parts["data"] + parts["contention"] + parts["start"]
    running = parts["step"] + parts["keras"]
    changes = [(waiting, _faster_input), (running, _longer_calls)]
    for seconds, change in sorted(changes, key=lambda pair: -pair[0]):
        if seconds >= LEAST_SHARE * epoch.seconds:
            config = change(problem, epoch, readings)
            if config is not None:
                return config
    return None


def _faster_input(
    problem: Problem, _: Epoch, readings: Sequence[Trial]
) -> FitConfig | None:
    """Return the config that is predicted to be the fastest by other knobs of the data.

    Return None if none is predicted to be faster than those that have run.
    """
    kept: dict[str, Any] = {
        knob: (getattr(problem.baseline, knob),)
        for knob in problem.space.knobs()
        if knob in ("batch_size", STEPS_PER_EXECUTION)
    }
    space = replace(problem.space, **kept)
    search = FrontierSearch(space, problem.baseline, problem.context)
    feasible, predicted = search.outlook(readings)
    if predicted is None:
        return None
    log_rates = dict(zip(search.configs, predicted.mean, strict=True))
    ran = {trial.config for trial in readings if trial.samples_per_second}
    fastest = max((log_rates[config] for config in ran & set(log_rates)), default=0.0)
    faster = {
        config: log_rates[config]
        for config, is_safe in zip(search.configs, feasible.safe, strict=True)
        if is_safe and log_rates[config] >= fastest + _LEAST_GAIN
    }
    least = max(faster.values(), default=0.0) - _LEAST_GAIN
    # the cheapest of those that are about as fast; it comes first
    return next((config for config in faster if faster[config] >= least), None)


def _longer_calls(
    problem: Problem, epoch: Epoch, readings: Sequence[Trial]
) -> FitConfig | None:
    """Return the config with the most steps in a call, if steps are short.

    That shows best what Keras does between steps, whatever is predicted.
    """
    seconds = (epoch.parts["step"] + epoch.parts["keras"]) / epoch.steps
    choices = problem.space.steps_per_execution or ()
    most = min(_LONGEST_CALL_SECONDS / max(seconds, 1e-9), epoch.steps)
    counts = [count for count in choices if count <= most]
    own = epoch.config.steps_per_execution or 1
    if seconds > _SHORT_STEP_SECONDS or max(counts, default=0) <= own:
        return None
    config = replace(epoch.config, steps_per_execution=counts[-1])
    is_tried = any(trial.config == config for trial in readings)
    return None if is_tried or config not in set(problem.space.configs()) else config
