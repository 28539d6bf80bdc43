"""The calls of `fit` that time a config; this module loads no backend.

    measure:  longest batch │ step alone │ input alone │ epochs │ steady training
    confirm:  longest batch │ a short epoch with validation, epochs │ longer steady training

The input alone comes last where it would change what follows. What is not asked for, or what the
data does not have, is left out.

A generator of plans returns what their clocks have read. A plan is made only when the one
before it has been played: it depends on the rates that were read, and two plans would hold batches
of both.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from autofit import backends
from autofit.records.states import Phase
from autofit.trial.worker import batch_shapes, step_clock
from autofit.trial.worker.plan import NOTICE_SECONDS, Plan, Rates
from autofit.trial.worker.step_clock import (
    MOST_STEPS,
    Epochs,
    SteadyRate,
    StepClock,
    worker_count,
)
from autofit.workload import fit_options
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.fit_input import FitInput

if TYPE_CHECKING:
    from autofit.trial.worker.bench import Bench

_COMPUTE_SECONDS = 0.5  # longest timing of the step alone
_INPUT_SECONDS = 0.5  # shortest timing of the pipeline alone
_INPUT_SPEEDUP = 1.5  # time of the first batch / time of a later one, at most (assumed)
# calls of the train function that are timed, however many batches one takes
_FEWEST_CALLS = 3
_PASSING_SECONDS = 0.002  # shortest time that Keras and tf.data need for a batch
_BATCHES_AHEAD = 3  # batches that Keras holds beyond max_queue_size, and one to be safe
# the first step is traced, and those up to the sixth are slow: they warm up the timed run
_FIRST_EPOCH_STEPS = 6
_GPU_WARM_UP_SECONDS = 0.5  # a GPU's clock rises from idle within this time (assumed)
_WARM_UP_STEPS = 2  # steps not counted in a run whose step is compiled
_VARIED_BATCHES = 8  # batches that represent an epoch of batches of different shapes
# steps of a confirming run: their memory counts, their time does not
_VALIDATION_STEPS = 10
_LONGEST_STEPS = 4  # two on the longest batch and two on the shortest
# seconds of steady training if whole epochs are timed, which are the rate then
_BRIEF_SECONDS = 0.5
# seconds of batches in a call of the idle model: Keras takes a millisecond for each call, 2 % of
# that
_IDLE_CALL_SECONDS = 0.05
# steps that are dispatched while the step is timed alone: enough to keep the device busy, few
# enough to end soon
_STEPS_AHEAD = 2

T = TypeVar("T")
Plans = Generator[Plan, None, T]


@dataclass(frozen=True)
class Readings:
    """The clock of steady training, the epochs or why there are none, and the rates alone."""

    steady: StepClock
    epochs: Epochs | str
    compute: SteadyRate | None = None
    input: SteadyRate | None = None


def measure(bench: Bench) -> Plans[Readings]:
    """Time step alone, input alone and training; the last call may leave an enqueuer running."""
    spec = bench.context.spec
    yield from _train_on_longest(bench)
    known = spec.compute_samples_per_second
    step = SteadyRate(known) if known else (yield from _time_step(bench))
    inputs = None
    input_rate = 0.0
    if not bench.times_input_last:
        inputs = yield from _time_input(bench)
        input_rate = inputs.samples_per_second
    rates = Rates(input_rate, step.samples_per_second)
    # in the user's run, copies of the validation data stay in memory: one step of validation makes
    # them
    steps = int(bench.held_out is not None and bench.held_out.one_fit)
    if spec.validates and bench.method.trains:
        in_a_second = round(rates.expected / bench.data.batch_samples)
        steps = _validation_steps(bench, max(_VALIDATION_STEPS, in_a_second))
    steady, epochs = yield from _train(
        bench,
        rates,
        validation_steps=steps,
        is_traced=not known,
        to_beat=spec.rate_to_beat,
    )
    if inputs is None:
        inputs = yield from _time_input(bench)
    return Readings(steady, epochs, step, inputs)


def confirm(bench: Bench) -> Plans[Readings]:
    """Train a short epoch with validation if the spec asks for it, then time longer training."""
    spec = bench.context.spec
    yield from _train_on_longest(bench)
    steps = 0
    if spec.reads_memory and bench.method.trains:
        steps = _validation_steps(bench, _VALIDATION_STEPS)
    rates = Rates(
        spec.input_samples_per_second or 0.0,
        spec.compute_samples_per_second or math.inf,
    )
    steady, epochs = yield from _train(
        bench, rates, validation_steps=steps, is_traced=False, enough_spread=0.0
    )
    return Readings(steady, epochs)


def _validation_steps(bench: Bench, most: int) -> int:
    given = bench.options.get(fit_options.VALIDATION_STEPS)
    return min(most, given or most)


def _train_on_longest(bench: Bench) -> Plans[None]:
    """Train on the longest and the shortest batch, if batches differ in shape."""
    context = bench.context
    shapes = batch_shapes.load(context.folder)
    if shapes is None:
        return
    samples = context.spec.config.batch_size or shapes.asked
    samples = samples or length_of(leaves(shapes.longest)[0])
    if shapes.asked is not None:
        bench.data.count_samples(samples)
    execution = bench.model.steps_per_execution
    batches = max(_LONGEST_STEPS, execution)
    calls = math.ceil(batches / execution)
    clock = StepClock(samples * execution, math.inf, steps=calls)
    yield Plan(
        bench.repeating(shapes.resized(samples), batches),
        {Phase.LONGEST_BATCH: clock},
        first=Phase.FIRST_LONGEST,
        with_callbacks=False,
    )


def _time_step(bench: Bench) -> Plans[SteadyRate]:
    """Time the step alone, on few batches that are repeated."""
    data = bench.data
    execution = bench.model.steps_per_execution
    samples = data.batch_samples
    # those to begin with, and those that stand for an epoch
    opening: list[Any] = []
    shapes = batch_shapes.load(bench.context.folder)
    if shapes is not None:
        opening = shapes.resized(samples)
        batches = list(itertools.islice(data.user_batches(), _VARIED_BATCHES))
    else:
        batch = data.batch()
        if bench.context.placement.gpus:
            # copies to a GPU belong to the input, so the batch that is repeated lies on the GPU
            batch = backends.current().on_device(batch)
        batches = [batch]
    if data.taken is not None:
        samples = sum(length_of(leaves(batch)[0]) for batch in batches) // len(batches)
    clock = StepClock(
        samples * execution,
        _COMPUTE_SECONDS,
        warm_up_seconds=_warm_up_seconds(bench),
        most_ahead=math.ceil(_STEPS_AHEAD / execution),
    )
    yield Plan(
        bench.repeating(batches, MOST_STEPS, opening),
        {Phase.COMPUTE_ALONE: clock},
        first=Phase.FIRST_STEP,
        ends_by_itself=False,
    )
    return clock.rate()


def _warm_up_seconds(bench: Bench) -> float:
    return _GPU_WARM_UP_SECONDS if bench.context.placement.gpus else 0.0


def _time_input(bench: Bench) -> Plans[SteadyRate]:
    """Time the input pipeline alone, with a model whose step does nothing."""
    # The run leaves no workers. Batches that were ready when the step had been traced are not
    # counted, nor are those in progress then. After the last step that counts, batches are still in
    # progress, so that the workers are busy to the end.
    data = bench.data
    workers = worker_count(data)
    ahead = data.applied.queue_batches + _BATCHES_AHEAD + workers
    ready = _ready_batches(data, ahead)
    # if all workers run at once
    batch_seconds = max(
        data.batch_seconds / (_INPUT_SPEEDUP * workers), _PASSING_SECONDS
    )
    # several devices share each batch evenly
    one_sample = backends.current().distribution_of(bench.model) is None
    steps = min(
        bench.model.steps_per_execution, math.ceil(_IDLE_CALL_SECONDS / batch_seconds)
    )
    model = bench.idle_model(steps)
    execution = model.steps_per_execution

    def count_ready() -> None:
        counted = min(ready(clock.steps_done * execution), 2 * ahead)
        clock.prefilled = math.ceil((counted + workers) / execution)

    end_pipeline = functools.partial(data.end_pipeline, one_sample=one_sample)
    clock = StepClock(
        data.batch_samples * execution,
        _INPUT_SECONDS,
        stall=count_ready,
        taken=data.taken,
        closing=end_pipeline if data.leaves_workers else None,
        most_ahead=0,
        round_steps=math.ceil(workers / execution),
        enough_spread=0.0,
    )
    length = MOST_STEPS
    if data.leaves_workers:
        timed_batches = math.ceil(_INPUT_SECONDS / batch_seconds / workers) * workers
        timed_calls = max(_FEWEST_CALLS, math.ceil(timed_batches / execution))
        untimed_calls = clock.warm_up + math.ceil(2 * (ahead + workers) / execution)
        length = (untimed_calls + timed_calls) * execution
    yield Plan(
        data.pipeline_arguments(length),
        {Phase.INPUT_ALONE: clock},
        ends_by_itself=data.leaves_workers,
        model=model,
        with_callbacks=False,
    )
    data.end_pipeline()
    return clock.rate()


def _train(
    bench: Bench, rates: Rates, *, validation_steps: int, is_traced: bool, **ends: Any
) -> Plans[tuple[StepClock, Epochs | str]]:
    """Time epochs if they are to be read, then steady training.

    If there are validation steps, a short epoch and a validation come first. `ends` say when the
    steady training may end. Return its clock, and the epochs or why there are none.
    """
    data = bench.data
    execution = bench.model.steps_per_execution
    epochs: Epochs | str = ""
    if bench.method.trains:
        spec = bench.context.spec
        epochs = step_clock.planned_epochs(
            data, bench.options, spec, execution, rates.expected
        )
    is_whole = False
    # `fit` validates only when an epoch ends, so the epoch before a validation has just the steps
    # that warm up the model
    short_steps = _FIRST_EPOCH_STEPS
    if isinstance(epochs, Epochs):
        is_whole = epochs.are_whole
        if data.ends_by_itself:
            short_steps = min(short_steps, epochs.steps)
    calls = math.ceil(short_steps / execution)
    earlier: dict[Phase, StepClock | Epochs] = {}
    if validation_steps:
        samples = data.batch_samples * execution
        earlier[Phase.FIRST_EPOCH] = StepClock(samples, math.inf, steps=calls)
    if isinstance(epochs, Epochs):
        earlier[Phase.EPOCHS] = epochs
    # Epochs that end with the data are a call of their own, so that their workers end. Arrays,
    # which `fit` may copy, are all given to one call, as in the user's own run, and a few of them
    # to another one for gaps.
    apart, together = (earlier, {}) if data.ends_by_itself else ({}, earlier)
    if Phase.EPOCHS in together and not is_whole:
        apart = {Phase.EPOCHS: together.pop(Phase.EPOCHS)}
    validation = _validation(bench, validation_steps)
    # a first step that must still be traced and compiled is a phase of its own
    first = None if is_traced else Phase.FIRST_STEP
    if apart:
        if isinstance(epochs, Epochs):
            arguments = dict(epochs.arguments)
        else:
            arguments = data.fit_arguments(calls * execution)
        if data.ends_by_itself:
            arguments |= validation
        yield Plan(arguments, apart, first)
        first = None
    is_compiled = is_traced or bool(apart or together)
    clock = _steady_clock(
        bench, rates, is_compiled=is_compiled, is_brief=is_whole, **ends
    )
    arguments = data.fit_arguments(MOST_STEPS)
    if not data.ends_by_itself:
        arguments |= validation
        # the first of these runs is interrupted, whatever its epoch has left; thousands of short
        # epochs may pass in it
        arguments["epochs"] += MOST_STEPS * len(together)
    # a run that is abandoned loses JAX's variables, so only the last may be
    is_last = bench.method.trains and not bench.times_input_last
    yield Plan(
        arguments,
        {**together, bench.method.phase: clock},
        first,
        ends_by_itself=False,
        is_abandoned=is_last and backends.current().steps_are_async,
    )
    return clock, epochs


def _validation(bench: Bench, steps: int) -> dict[str, Any]:
    if bench.held_out is None or not steps:
        return {}
    once = {"validation_freq": [1]}
    return bench.held_out.validation_arguments(steps) | once


def _steady_clock(
    bench: Bench, rates: Rates, *, is_compiled: bool, is_brief: bool, **ends: Any
) -> StepClock:
    """Make a clock for steady training; `ends` say when it may end."""
    # The queue is filled once during the run, so that its memory can be read. A pipeline that is
    # clearly faster than the steps fills the queue in the user's run as well, so it fills it before
    # the steps that count. Any other pipeline fills it after them; the steps that consume what was
    # ready or begun before are not counted.
    context = bench.context
    data = bench.data
    execution = bench.model.steps_per_execution
    queue = data.applied.queue_batches + _BATCHES_AHEAD if data.applied.has_queue else 0
    ready = _ready_batches(data, queue)

    def drain() -> None:
        queued = ready(clock.steps_done * execution)
        begun = min(queue, worker_count(data))
        steps = step_clock.steps_to_drain(queued, begun, rates.input, rates.step)
        clock.prefilled = math.ceil(steps / execution)

    def fill() -> None:
        context.enter(Phase.FILLING_QUEUE)
        if data.batches_made() is not None:
            step_clock.wait_until_full(data.batches_made, data.batch_seconds)
            clock.queued = ready(clock.steps_done * execution)
        else:
            time.sleep(min(step_clock.STALL_SECONDS, queue * data.batch_seconds))
        context.enter(Phase.QUEUE_FULL)
        time.sleep(NOTICE_SECONDS)  # the queue stays full for as long
        context.enter(bench.method.phase)

    stall: Callable[[], None] | None = None
    closing: Callable[[], None] | None = None
    if queue:
        stall = fill if rates.fills_queue else drain
        if not rates.fills_queue and context.spec.reads_memory:
            closing = fill
    seconds = context.spec.measure_seconds
    steps, fewest_calls = (
        (_WARM_UP_STEPS, 1) if is_compiled else (_FIRST_EPOCH_STEPS, 2)
    )
    clock = StepClock(
        data.batch_samples * execution,
        min(_BRIEF_SECONDS, seconds) if is_brief else seconds,
        warm_up=max(fewest_calls, math.ceil(steps / execution)),
        warm_up_seconds=_warm_up_seconds(bench),
        taken=data.taken,
        stall=stall,
        closing=closing,
        compiled=backends.current().compile_clock(),
        **ends,
    )
    return clock


def _ready_batches(data: FitInput, most: int) -> Callable[[int], int]:
    """Return a function of the batches consumed from now on, which counts those that are ready."""
    began = time.perf_counter()
    made_before = data.batches_made() or 0
    workers = worker_count(data)
    batch_seconds = max(data.batch_seconds / 2, _PASSING_SECONDS)

    def ready(consumed: int) -> int:
        made = data.batches_made()
        if made is not None:
            return max(0, made - made_before - consumed)
        # they cannot be counted: what the workers could make meanwhile
        seconds = time.perf_counter() - began
        return min(most, math.ceil(workers * seconds / batch_seconds))

    return ready
