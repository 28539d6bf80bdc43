"""Measure or confirm a config; loads Keras.

Three rates are measured, all with `Model.fit`, or with `predict` or `evaluate` if they are tuned: end to end; the same step
on one repeated batch (compute); the same pipeline with a step that does nothing (input). Keras fetches batches inside its
compiled train function, so no finer measurement can separate waiting from computing.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from autofit import backends
from autofit.records.states import Outcome, Phase
from autofit.records.trial import INPUT_BOUND_RATIO, Evidence, Measurement
from autofit.trial.wire import Message
from autofit.trial.worker import batch_shapes, step_clock
from autofit.trial.worker.bench import (
    NOTICE_SECONDS,
    Bench,
    Run,
    build_model,
    build_variables,
    distribution_of,
    open_data,
)
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.step_clock import MOST_STEPS, Epochs, SteadyRate, StepClock, ceiling
from autofit.workload import fit_options
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.workload import Workload

_COMPUTE_SECONDS = 0.5  # longest timing of the step alone
_INPUT_SECONDS = 0.5  # shortest timing of the pipeline alone
_INPUT_SPEEDUP = 1.5  # time of the first batch / time of a later one, at most (assumed)
_FEWEST_CALLS = 3  # of the train function that are timed, however many batches a call takes
_PASSING_SECONDS = 0.002  # shortest time that Keras and tf.data need for a batch
_BATCHES_AHEAD = 3  # batches that Keras holds beyond max_queue_size, and one to be safe
# the first step is traced, and those up to the sixth are slow: they warm up the timed run
_FIRST_EPOCH_STEPS = 6
_GPU_WARM_UP_SECONDS = 0.5  # a GPU's clock rises from idle within this time (assumed)
_WARM_UP_STEPS = 2  # steps not counted in a run whose step is compiled
_VALIDATION_STEPS = 10  # steps of a confirming run: their memory counts, their time does not
_VARIED_BATCHES = 8  # batches that represent an epoch of batches of different shapes
_LONGEST_STEPS = 4  # two on the longest batch and two on the shortest
_BRIEF_SECONDS = 0.5  # of steady training if whole epochs are timed, which are the rate then
_IDLE_CALL_SECONDS = 0.05  # of batches in a call of the idle model: Keras takes a millisecond for each call, 2 % of that
_STEPS_AHEAD = 2  # dispatched while the step is timed alone: enough to keep the device busy, few enough to end soon


def measure(context: TrialContext, loaded: Workload) -> None:
    """Measure the compute rate, the input rate and the end-to-end rate; the last run may leave an enqueuer running."""
    bench = _opened(context, loaded)
    spec = context.spec
    known = spec.compute_samples_per_second
    step = SteadyRate(known) if known else _compute_rate(bench)
    inputs = None if bench.times_input_last else _input_rate(bench)
    rates = inputs.samples_per_second if inputs else 0.0, step.samples_per_second
    # in the user's run, copies of the validation data stay in memory: one step of validation makes them
    validates = bench.held_out is not None and bench.held_out.one_fit
    timed = _train(
        bench,
        rates,
        validation_steps=int(validates),
        is_traced=not known,
        to_beat=spec.rate_to_beat,
    )
    _send(bench, *timed, compute=step, input=inputs or _input_rate(bench))


def confirm(context: TrialContext, loaded: Workload) -> None:
    """Train a short epoch with validation if the spec asks for it, then time a longer run in the following epochs."""
    bench = _opened(context, loaded)
    validates = context.spec.reads_memory and bench.method.trains
    rates = (
        context.spec.input_samples_per_second or 0.0,
        context.spec.compute_samples_per_second or math.inf,
    )
    steps = min(
        _VALIDATION_STEPS, bench.options.get(fit_options.VALIDATION_STEPS) or _VALIDATION_STEPS
    )
    _send(
        bench,
        *_train(
            bench,
            rates,
            validation_steps=steps if validates else 0,
            is_traced=False,
            enough_spread=0.0,
        ),
    )


def _opened(context: TrialContext, loaded: Workload) -> Bench:
    model = build_model(context, loaded)
    bench = Bench(context, loaded, model, *open_data(context, loaded, context.spec.config))
    if bench.method.trains:
        build_variables(model, bench.data.batch())
    if (shapes := batch_shapes.load(context.folder)) is not None:
        samples = (
            context.spec.config.batch_size or shapes.asked or length_of(leaves(shapes.longest)[0])
        )
        if shapes.asked is not None:
            bench.data.count_samples(samples)
        steps = max(_LONGEST_STEPS, model.steps_per_execution)
        run = Run(StepClock(samples, math.inf, steps=steps), Phase.LONGEST_BATCH)
        arguments = _repeating(bench, shapes.resized(samples), steps)
        bench.run(arguments, [run], first=Phase.FIRST_LONGEST, with_callbacks=False)
    return bench


def _train(
    bench: Bench, rates: tuple[float, float], *, validation_steps: int, is_traced: bool, **ends: Any
) -> tuple[StepClock, Epochs | str]:
    """Time epochs if they are to be read, then steady training; return its clock, and the epochs or why there are none."""
    # If there are validation steps, first train a short epoch and validate. Epochs that end with the data are a separate
    # call of `fit`, so that their workers end. Arrays, which `fit` may copy, are all given to one call, as in the user's
    # own run, and a few of them to another one for gaps. A first step that must still be traced and compiled is a separate
    # phase.
    data = bench.data
    execution = bench.model.steps_per_execution
    expected = min((rate for rate in rates if 0 < rate < math.inf), default=0.0)
    trains = bench.method.trains
    validation = {}
    planned = (
        step_clock.planned_epochs(data, bench.options, bench.context.spec, execution, expected)
        if trains
        else ""
    )
    timed = planned if isinstance(planned, Epochs) else None
    if bench.held_out is not None and validation_steps:
        validation = bench.held_out.validation_arguments(validation_steps)
        validation["validation_freq"] = [1]  # once
        bench.validation_batches = validation["validation_steps"] or math.inf
    is_whole = timed is not None and timed.are_whole
    at_once = not data.ends_by_itself
    steps = _FIRST_EPOCH_STEPS if timed is None or at_once else min(_FIRST_EPOCH_STEPS, timed.steps)
    short_clock = StepClock(
        data.batch_samples * execution, math.inf, steps=math.ceil(steps / execution)
    )
    short = [Run(short_clock, Phase.FIRST_EPOCH)] if validation_steps else []
    epochs = [] if timed is None else [Run(timed, Phase.EPOCHS)]
    together = [*short, *(epochs if is_whole else [])] if at_once else []
    separate = [run for run in (*short, *epochs) if run not in together]
    first = None if is_traced else Phase.FIRST_STEP
    if separate:
        arguments = (
            data.fit_arguments(math.ceil(steps / execution) * execution)
            if timed is None
            else timed.arguments
        )
        bench.run({**arguments, **({} if at_once else validation)}, separate, first=first)
        first = None
    clock = _fit_clock(
        bench, rates, is_compiled=is_traced or bool(separate or together), is_brief=is_whole, **ends
    )
    # a run that is abandoned loses JAX's variables, so only the last may be
    is_abandoned = trains and not bench.times_input_last and backends.current().steps_are_async
    runs = [*together, Run(clock, bench.method.phase, is_abandoned=is_abandoned)]
    arguments = data.fit_arguments(MOST_STEPS)
    if at_once:
        arguments |= validation
        # the first of these runs is interrupted, whatever its epoch has left; thousands of short
        # epochs may pass in it
        arguments["epochs"] += MOST_STEPS * len(together)
    bench.run(arguments, runs, first=first, ends_by_itself=False)
    return clock, planned


def _fit_clock(
    bench: Bench, rates: tuple[float, float], *, is_compiled: bool, is_brief: bool, **ends: Any
) -> StepClock:
    """Make a clock for steady training; `rates` are those of input and compute alone, `ends` say when it may end."""
    # The queue is filled once during the run, so that its memory can be read. A pipeline that is clearly faster than the
    # steps fills the queue in the user's run as well, so it fills it before the steps that count. Any other pipeline fills
    # it after them; the steps that consume what was ready or begun before are not counted.
    context = bench.context
    data = bench.data
    execution = bench.model.steps_per_execution
    queue = data.applied.queue_batches + _BATCHES_AHEAD if data.applied.has_queue else 0
    ready = _ready_batches(bench, queue)

    def drain() -> None:
        queued = ready(clock.steps_done * execution)
        begun = min(queue, data.applied.worker_count(os.cpu_count() or 1))
        clock.prefilled = math.ceil(step_clock.steps_to_drain(queued, begun, *rates) / execution)

    def fill() -> None:
        context.enter(Phase.FILLING_QUEUE)
        if data.batches_made() is not None:
            step_clock.wait_until_full(lambda: data.batches_made() or 0, data.batch_seconds)
            clock.queued = ready(clock.steps_done * execution)
        else:
            time.sleep(min(step_clock.STALL_SECONDS, queue * data.batch_seconds))
        context.enter(Phase.QUEUE_FULL)
        time.sleep(NOTICE_SECONDS)  # the queue stays full for as long
        context.enter(bench.method.phase)

    steps, fewest_calls = (_WARM_UP_STEPS, 1) if is_compiled else (_FIRST_EPOCH_STEPS, 2)
    fills_first = rates[0] >= INPUT_BOUND_RATIO * rates[1]
    clock = StepClock(
        data.batch_samples * execution,
        min(_BRIEF_SECONDS, context.spec.measure_seconds)
        if is_brief
        else context.spec.measure_seconds,
        warm_up=max(fewest_calls, math.ceil(steps / execution)),
        warm_up_seconds=_GPU_WARM_UP_SECONDS if context.placement.gpus else 0.0,
        taken=data.taken,
        stall=None if not queue else fill if fills_first else drain,
        closing=None if not queue or fills_first or not context.spec.reads_memory else fill,
        **ends,
    )
    return clock


def _ready_batches(bench: Bench, most: int) -> Callable[[int], int]:
    """Return a function of the batches consumed from now on, which returns the number that is ready, or may be."""
    data = bench.data
    began = time.perf_counter()
    made_before = bench.data.batches_made() or 0
    workers = data.applied.worker_count(os.cpu_count() or 1)

    def ready(consumed: int) -> int:
        if (made := data.batches_made()) is not None:
            return max(0, made - made_before - consumed)
        # they cannot be counted: what the workers could make meanwhile
        return min(
            most,
            math.ceil(
                workers
                * (time.perf_counter() - began)
                / max(data.batch_seconds / 2, _PASSING_SECONDS)
            ),
        )

    return ready


def _compute_rate(bench: Bench) -> SteadyRate:
    context = bench.context
    data = bench.data
    execution = bench.model.steps_per_execution
    shapes = batch_shapes.load(context.folder)
    samples = data.batch_samples
    if shapes is not None:
        batches = list(itertools.islice(data.user_batches(), _VARIED_BATCHES))
    else:  # copies to a GPU belong to the input, so the batch that is repeated lies on the GPU
        batches = [
            backends.current().on_device(data.batch()) if context.placement.gpus else data.batch()
        ]
    opening = [] if shapes is None else shapes.resized(samples)
    if data.taken is not None:
        samples = sum(length_of(leaves(batch)[0]) for batch in batches) // len(batches)
    clock = StepClock(
        samples * execution,
        _COMPUTE_SECONDS,
        warm_up_seconds=_GPU_WARM_UP_SECONDS if context.placement.gpus else 0.0,
        most_ahead=math.ceil(_STEPS_AHEAD / execution),
    )
    arguments = _repeating(bench, batches, MOST_STEPS, opening)
    bench.run(
        arguments, [Run(clock, Phase.COMPUTE_ALONE)], first=Phase.FIRST_STEP, ends_by_itself=False
    )
    return clock.rate()


def _repeating(
    bench: Bench, batches: Sequence[Any], length: int, opening: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return arguments of `fit` for `length` batches: those of `opening` once, then `batches` repeated in this order."""
    if bench.has_own_method and bench.data.kind == Arrays.kind:
        return bench.data.pipeline_arguments(length)  # such a method may accept nothing but arrays
    # On TensorFlow, Keras turns every input into a `tf.data.Dataset`, and takes a dataset unchanged: `train_step` gets its
    # elements with their structure (Keras 3.15 `TFDatasetAdapter`). On other backends, Keras takes the batches of a
    # PyDataset one by one.
    if backends.current().uses_tfdata:
        data = batch_shapes.repeated_tfdata(
            batches, length, opening, of_fixed_size=bench.data.of_fixed_size
        )
    else:
        data = batch_shapes.RepeatedBatches(batches, length, opening)
    return {"x": data, "shuffle": False}


def _input_rate(bench: Bench) -> SteadyRate:
    # The pipeline runs alone if the model's step does nothing. The run leaves no workers. Batches that were ready when the
    # step had been traced are not counted, nor are those in progress then. After the last step that counts, batches are
    # still in progress, so that the workers are busy to the end.
    data = bench.data
    workers = data.applied.worker_count(os.cpu_count() or 1)
    ahead = data.applied.queue_batches + _BATCHES_AHEAD + workers
    ready = _ready_batches(bench, ahead)
    # if all workers run at once
    batch_seconds = max(data.batch_seconds / (_INPUT_SPEEDUP * workers), _PASSING_SECONDS)
    one_sample = distribution_of(bench.model) is None  # several devices share each batch evenly
    steps = min(bench.model.steps_per_execution, math.ceil(_IDLE_CALL_SECONDS / batch_seconds))
    model = bench.idle_model(steps)
    execution = model.steps_per_execution

    def count_ready() -> None:
        clock.prefilled = math.ceil(
            (min(ready(clock.steps_done * execution), 2 * ahead) + workers) / execution
        )

    clock = StepClock(
        data.batch_samples * execution,
        _INPUT_SECONDS,
        stall=count_ready,
        taken=data.taken,
        closing=functools.partial(data.end_pipeline, one_sample=one_sample)
        if data.leaves_workers
        else None,
        most_ahead=0,
        round_steps=math.ceil(workers / execution),
        enough_spread=0.0,
    )
    timed_batches = math.ceil(_INPUT_SECONDS / batch_seconds / workers) * workers
    timed_calls = max(_FEWEST_CALLS, math.ceil(timed_batches / execution))
    calls = clock.warm_up + math.ceil(2 * (ahead + workers) / execution) + timed_calls
    arguments = data.pipeline_arguments(calls * execution if data.leaves_workers else MOST_STEPS)
    run = Run(clock, Phase.INPUT_ALONE)
    bench.run(
        arguments, [run], model=model, ends_by_itself=data.leaves_workers, with_callbacks=False
    )
    data.end_pipeline()
    return clock.rate()


def _send(bench: Bench, clock: StepClock, planned: Epochs | str, **alone: SteadyRate) -> None:
    context = bench.context
    rate = clock.rate()
    held_out = bench.held_out
    seconds = bench.validation_batch_seconds or 0.0
    batches = 0
    if held_out is not None and fit_options.VALIDATION_STEPS not in bench.options:
        batches = math.ceil((held_out.sample_count() or 0) / held_out.batch_samples)
    readings: dict[str, Any] = {
        "samples_per_second": rate.samples_per_second,
        "spread": rate.spread,
    }
    readings |= (
        planned.readings(rate) if isinstance(planned, Epochs) else {"epoch_gap_unread": planned}
    )
    for name in ("compute", "input"):
        rate_alone, is_read = ceiling(alone.get(name), rate)
        spread = alone[name].spread if name in alone else None
        readings |= {
            f"{name}_samples_per_second": rate_alone,
            f"{name}_spread": spread,
            f"{name}_is_read": is_read,
        }
    peak, limit = context.peaks.highest(), context.spec.limits.device_bytes
    notice = context.peaks.backend.allocator_notice(peak, limit) if peak and limit else ""
    measured = Measurement(
        Outcome.OK,
        Evidence("finished"),
        **readings,
        allocator_notice=notice,
        device_peak_bytes=peak,
        device_peak_bytes_by_phase=context.peaks.by_phase,
        steady_samples_per_second=rate.samples_per_second,
        step_seconds=rate.step_seconds,
        steps=rate.steps,
        blocks=rate.blocks,
        queued_batches=clock.queued,
        validation_seconds=seconds * batches or None,
    )
    context.send(Message(measurement=measured))
