"""Tell where the time of an epoch goes, and what would shorten it: the first minute of a tune.

    describe ──> the baseline ──> up to two changes, of what takes most of an epoch ──> the parts
                                                                                    and remedies

The trials are those of a search, with the same readings, and are stored as such: the tune after it
goes on with them. A saved tune has them already. The exception is a trial of `jit_compile`, which
is not a knob.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofit.backends import BACKENDS
from autofit.records import confidence
from autofit.records.epoch import Epoch, EpochRecord, PartName, Remedy, epoch_of
from autofit.records.events import Activity, Emit
from autofit.records.knobs import DATA_KNOBS, STEPS_PER_EXECUTION, FitConfig
from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.trial import Trial, noise_of
from autofit.records.units import format_bytes
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.frontier import FrontierSearch
from autofit.search.memory import Memory
from autofit.search.rates import rated_trials, run_noise
from autofit.search.space import batch_grid
from autofit.trial.launcher import Launcher
from autofit.tuning.delivery import Beliefs
from autofit.tuning.engine import Engine, begun
from autofit.tuning.policy import Run
from autofit.tuning.problem import Problem
from autofit.tuning.record import no_result_error
from autofit.tuning.request import TuneRequest

_MOST_CHANGES = 2
# of an epoch: nothing is tried against a part that takes less
_LEAST_SHARE = 0.1
# relative gain below which a change of the data's knobs is not tried
_LEAST_GAIN = 0.02
# in which a change may begin, beside what two trials take before their second step: it then ends
# within a minute and three times that
_SECONDS = 45.0
_BEFORE_STEPS = (Phase.LOADING, Phase.OPENING, Phase.BUILDING, Phase.FIRST_STEP)
# what Keras does between steps takes milliseconds: it does not matter beside a longer step
_SHORT_STEP_SECONDS = 0.05
# longest call of several steps
_LONGEST_CALL_SECONDS = 1.0
# of those of one kind that a saved tune has tried
_MOST_SHOWN = 2
_LARGEST_BATCH = 2**16


def why(request: TuneRequest, launcher: Launcher, emit: Emit) -> EpochRecord:
    """Run the baseline and what may shorten its epochs, and say where their time goes."""
    most = {"max_trials": 1 + _MOST_CHANGES}
    request = replace(request, settings=request.settings.model_copy(update=most))
    with begun(request, launcher, emit) as (engine, problem):
        _run_baseline(engine, problem)
        for _ in range(_MOST_CHANGES):
            config = _change(problem, engine.study.trials())
            if config is None or not _has_time(engine, problem):
                break
            step = Run(config, Stage.SEARCH, "may shorten an epoch", math.inf, True)
            engine.run(problem, step)
        compiled = _compiled(engine, problem)
        return explained(engine.log(), problem.baseline, compiled)


def _run_baseline(engine: Engine, problem: Problem) -> None:
    """Run the baseline if no reading of it tells the start of an epoch."""
    own = [
        trial
        for trial in engine.study.trials()
        if trial.config == problem.baseline and trial.samples_per_second
    ]
    if any(trial.measurement.epoch_gap_seconds is not None for trial in own):
        return
    stage = Stage.AGAIN if own else Stage.SEARCH
    engine.run(
        problem,
        Run(problem.baseline, stage, "your present configuration", math.inf, True),
    )
    readings = engine.study.trials()
    if not any(t.config == problem.baseline and t.samples_per_second for t in readings):
        reason = "your present configuration did not finish"
        raise no_result_error(problem, engine.runner.budget, readings, reason)


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
    if epoch.cause(description.epochs) != "step":
        return None
    doing = Activity("timing the step with jit_compile", problem.baseline)
    return engine.runner.measure(problem.baseline, doing, jit_compile=True)


def _change(problem: Problem, readings: Sequence[Trial]) -> FitConfig | None:
    """Return a config that may shorten what takes most of an epoch, and has not been tried."""
    baseline = problem.baseline
    epoch = epoch_of(problem.description, baseline, readings)
    parts = epoch.parts
    # fewer workers start sooner
    waiting = parts["data"] + parts["contention"] + parts["start"]
    running = parts["step"] + parts["keras"]
    changes = [(waiting, _faster_input), (running, _longer_calls)]
    for seconds, change in sorted(changes, key=lambda pair: -pair[0]):
        if seconds >= _LEAST_SHARE * epoch.seconds:
            config = change(problem, epoch, readings)
            if config is not None:
                return config
    return None


def _faster_input(
    problem: Problem, _: Epoch, readings: Sequence[Trial]
) -> FitConfig | None:
    """Return the config that is predicted to be the fastest by other knobs of the data."""
    baseline = problem.baseline
    kept: dict[str, Any] = {
        knob: (getattr(baseline, knob),)
        for knob in problem.space.knobs()
        if knob in ("batch_size", STEPS_PER_EXECUTION)
    }
    space = replace(problem.space, **kept)
    search = FrontierSearch(space, baseline, problem.context)
    feasible, rates = search.outlook(readings)
    if rates is None or not feasible.safe.any():
        return None
    tried = [rates.mean[~feasible.untried].max()] if not feasible.untried.all() else []
    least = max(tried, default=-math.inf) + math.log1p(_LEAST_GAIN)
    best = rates.mean[feasible.safe].max()
    if best < least:
        return None
    # the cheapest of those that are about as fast
    near = feasible.safe & (rates.mean >= max(least, best - _LEAST_GAIN))
    return search.configs[int(near.argmax())]


def _longer_calls(
    problem: Problem, epoch: Epoch, readings: Sequence[Trial]
) -> FitConfig | None:
    """Return the config with the most steps in a call, if steps are short."""
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


def of_saved(record: TuneRecord) -> EpochRecord:
    """Say where the time of an epoch goes by the trials of a saved tune."""
    return explained(record, record.speedup.baseline)


def explained(
    log: TuneLog, baseline: FitConfig, compiled: Trial | None = None
) -> EpochRecord:
    """Return the parts of an epoch and the remedies, by what has run.

    `compiled` is a trial of the baseline with `jit_compile`, if there was one.
    """
    description = log.description
    assert description is not None
    readings = log.readings
    epoch = epoch_of(description, baseline, readings)
    context = SearchContext(
        description, log.limits, log.machine.cores, log.placement.device is None
    )
    cause = epoch.cause(description.epochs)
    source = log.call_source
    return EpochRecord(
        program=_script_name(source.script) or f"{source.model} with {source.data}",
        config=baseline,
        samples=epoch.samples,
        steps=epoch.steps,
        is_length_known=epoch.is_length_known,
        seconds=epoch.seconds,
        parts=epoch.parts,
        cause=cause,
        remedies=tuple(_remedies(log, epoch, context, compiled)),
        notes=tuple(_notes(log, epoch, context)),
        largest_batch_size=_largest_batch(context, baseline, readings),
        device_peak_bytes=epoch.run.device_peak_bytes,
        host_peak_bytes=epoch.run.host_peak_bytes,
        limits=log.limits,
        trials=len(readings) + (compiled is not None),
        took_seconds=log.seconds,
    )


def _script_name(command: str) -> str:
    """Return the name of a script without its folder and its arguments."""
    names = shlex.split(command)[1:]
    is_module = names[:1] == ["-m"]
    return (
        " ".join(names[:2]) if is_module else "".join(Path(n).name for n in names[:1])
    )


def _remedies(
    log: TuneLog, epoch: Epoch, context: SearchContext, compiled: Trial | None
) -> Iterator[Remedy]:
    description = context.description
    parts = epoch.parts
    tried = list(_tried(log.readings, epoch, context))
    yield from tried
    has = {remedy.part for remedy in tried}
    large = {
        name for name, each in parts.items() if each >= _LEAST_SHARE * epoch.seconds
    }
    if "data" in large:
        if "data" not in has:
            knobs = ", ".join(knob for knob in DATA_KNOBS if knob in description.knobs)
            knobs = knobs.removeprefix("batch_size").removeprefix(", ")
            note = "no other value is predicted to be faster"
            if not knobs:
                knobs = "workers"
                note = description.untuned.get("workers", "the data has no such knob")
            yield Remedy("data", knobs, note=note)
        yield from _kept_in_memory(epoch, context)
    if "step" in large and "keras" not in has:
        steps = (parts["step"] + parts["keras"]) / epoch.steps
        note = f"a step takes {1000 * steps:.0f} ms, Keras between steps about one"
        if steps <= _SHORT_STEP_SECONDS:
            note = "not every program can: see autofit tune"
        yield Remedy("keras", "several steps a call", note=note)
    if "compiling" in large:
        note = "each of them is compiled once"
        yield Remedy("compiling", "batches padded to a few lengths", note=note)
    elif "step" in large:
        yield _with_compiler(epoch, context, compiled)
    if "validation" in large:
        seconds = epoch.seconds - parts["validation"] / 2
        yield Remedy("validation", "half as often (validation_freq)", seconds)
    if "start" in large:
        seconds = epoch.seconds - parts["start"] / 2
        yield Remedy("start", "two epochs in one (repeat the data)", seconds)


def _tried(
    readings: Sequence[Trial], epoch: Epoch, context: SearchContext
) -> Iterator[Remedy]:
    """Yield the changes of one kind that have run, the best ones first."""
    baseline = epoch.config
    rated = [
        t for t in rated_trials(readings) if t.config.batch_size == baseline.batch_size
    ]
    beliefs = Beliefs(rated, dict.fromkeys(t.config for t in rated), context)
    # knobs of the data also change what an epoch takes to start
    of_input: PartName = "data"
    if epoch.parts["start"] > epoch.parts["data"] + epoch.parts["contention"]:
        of_input = "start"
    found: dict[PartName, dict[FitConfig, Remedy]] = {of_input: {}, "keras": {}}
    for trial in readings:
        config = trial.config
        own_steps = replace(config, steps_per_execution=baseline.steps_per_execution)
        is_longer_call = own_steps == baseline
        is_other = config.batch_size != baseline.batch_size or config == baseline
        if is_other or not (is_longer_call or own_steps == config):
            continue
        part: PartName = "keras"
        change = f"{config.steps_per_execution} steps a call"
        if not is_longer_call:
            part = of_input
            change = str(replace(config, batch_size=None, steps_per_execution=None))
        if trial.samples_per_second:
            rate, spread = beliefs.rate(config)
            seconds = epoch.samples / rate
            low, high = (seconds / (1 + spread), seconds * (1 + spread))
            validation = epoch.parts["validation"]
            found[part][config] = Remedy(
                part,
                change,
                seconds + validation,
                low + validation,
                high + validation,
                config,
            )
        elif trial.measurement.outcome is not Outcome.OK:
            reason = trial.measurement.evidence.reason
            found[part].setdefault(
                config, Remedy(part, change, config=config, note=reason)
            )
    for of_part in found.values():
        ranked = sorted(of_part.values(), key=lambda each: each.seconds or math.inf)
        yield from ranked[:_MOST_SHOWN]


def _kept_in_memory(epoch: Epoch, context: SearchContext) -> Iterator[Remedy]:
    """Yield what an epoch without its input takes, if the data fits."""
    needed = epoch.samples * context.description.sample_bytes
    change = f"data kept in memory ({format_bytes(needed)})"
    left = context.limits.host_bytes - (epoch.run.host_peak_bytes or 0)
    if not epoch.is_length_known:
        return
    if needed > left:
        note = f"{format_bytes(max(0, left))} are free"
        yield Remedy("data", change, note=note)
        return
    saved = epoch.parts["data"] + epoch.parts["contention"]
    yield Remedy("data", change, epoch.seconds - saved, note="if it does not change")


def _with_compiler(
    epoch: Epoch, context: SearchContext, compiled: Trial | None
) -> Remedy:
    """Return what compiling the step gives."""
    description = context.description
    backend = BACKENDS[description.backend]
    change = "jit_compile=True"
    if compiled is None:
        note = "not tried"
        if description.jit_compile:
            note = f"it is compiled already, by {backend.compiler}"
        elif backend.compile_seconds:
            note = f"not tried: {backend.compiler} may take minutes"
        return Remedy("step", change, note=note)
    measured = compiled.measurement
    if not compiled.samples_per_second:
        return Remedy("step", change, note=measured.evidence.reason)
    steady = measured.steady_samples_per_second or compiled.samples_per_second
    rest = epoch.parts["start"] + epoch.parts["validation"]
    seconds = epoch.samples / steady
    noise = math.hypot(noise_of(measured.spread), run_noise(context))
    factor = math.exp(confidence.deviations() * noise)
    return Remedy(
        "step", change, rest + seconds, rest + seconds / factor, rest + seconds * factor
    )


def _notes(log: TuneLog, epoch: Epoch, context: SearchContext) -> Iterator[str]:
    conditions = epoch.run.conditions
    if conditions is not None and conditions.is_disturbed:
        yield (
            f"{conditions.other_work}: all of this takes longer than on an idle machine. End that "
            "work, and ask again"
        )
    if not epoch.is_length_known:
        yield f"the data does not tell its length: these are {epoch.steps:,} steps"
    if epoch.run.epoch_gap_unread:
        yield f"the start of an epoch is not in it: {epoch.run.epoch_gap_unread}"
    if left_out := ", ".join(context.description.left_out_callbacks):
        yield f"trials left out {left_out}: what they take is not in it"
    if context.on_cpu:
        yield (
            "on a CPU, copies to a GPU and callbacks that make each step wait for the GPU cannot "
            "be measured"
        )


def _largest_batch(
    context: SearchContext, baseline: FitConfig, readings: Sequence[Trial]
) -> int | None:
    """Return the largest batch that is expected to fit; None if the batch is not a knob."""
    own = baseline.batch_size
    description = context.description
    if own is None or description.fixed_batch_size is not None:
        return None
    most = max(own, min(description.sample_count or _LARGEST_BATCH, _LARGEST_BATCH))
    sizes = batch_grid(own, most)
    configs = ConfigArrays(
        [replace(baseline, batch_size=size) for size in sizes], context.cores
    )
    upper = Memory(context, readings).upper_bytes(configs)
    fitting = [
        size
        for size, (device, host) in zip(sizes, upper.T, strict=True)
        if context.limits.allow(device, host)
    ]
    return max(fitting, default=None)
