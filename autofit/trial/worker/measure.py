"""Measure or confirm a config; loads Keras when it is called.

Three rates are measured, all with `Model.fit`: end to end; the same step on one repeated batch (compute); the same pipeline
with a step that does nothing (input). Keras fetches batches inside its compiled train function: no finer measurement can
separate waiting from computing.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import time
from collections.abc import Mapping
from typing import Any

import psutil

from autofit.records.states import Phase
from autofit.records.trial import INPUT_BOUND_RATIO
from autofit.trial.wire import Readings
from autofit.trial.worker import batch_shapes
from autofit.trial.worker.build import build_model, open_training, open_validation
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.keras_versions import idle_model, keras_of, repeated, steps_per_execution
from autofit.trial.worker.step_clock import STALL_SECONDS, Rate, StepClock, wait_until_full
from autofit.workload.inputs.batch import leaves
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.workload import Workload

_COMPUTE_SECONDS = 0.8  # longest timing of the step alone
_INPUT_SECONDS = 0.5  # for which the pipeline runs alone
_FEWEST_INPUT_STEPS = 4  # of the pipeline alone, however slow it is
_PASSING_SECONDS = 0.002  # least time of a batch on its way through Keras and tf.data
_MOST_STEPS = 20_000  # of an epoch: more than a run needs, and few enough for Keras to shuffle their indices quickly
_BATCHES_AHEAD = 3  # batches that Keras holds beyond max_queue_size, and one to be safe
_FIRST_EPOCH_STEPS = 6  # the first is traced, and those up to the sixth are slow: they warm up the timed run
_WARM_UP_STEPS = 2  # not counted in a run whose step was trained before
_VALIDATION_STEPS = 10  # of a confirming run: their memory counts, not their time
_VARIED_BATCHES = 8  # that stand for an epoch of batches that differ in shape
_LONGEST_STEPS = 4  # two on the longest batch and two on the shortest
_READING_SECONDS = 0.3  # the queue stays full while the driver reads the memory of all processes


def _train_on_longest(context: TrialContext, model: Any) -> None:
    """Train a few steps on the longest and the shortest batch, if batches differ in shape."""
    shapes = batch_shapes.load(context.folder)
    if shapes is None:
        return
    context.enter(Phase.LONGEST_BATCH)
    samples = context.config.batch_size or len(leaves(shapes.longest)[0])
    steps = max(_LONGEST_STEPS, steps_per_execution(model))
    model.fit(repeated(keras_of(model), shapes.resized(samples), steps), verbose=0)


def measure(context: TrialContext, loaded: Workload) -> None:
    """Measure the compute rate and the input rate; then the end-to-end rate, which may leave an enqueuer running."""
    model = build_model(context, loaded)
    data = open_training(context, loaded)
    _train_on_longest(context, model)
    measured_before = context.spec.compute_samples_per_second
    compute_rate = measured_before or _compute_rate(context, model, data).samples_per_second
    input_rate = _input_rate(context, keras_of(model), data).samples_per_second
    clock = _fit_clock(
        context,
        model,
        data,
        drain=input_rate < INPUT_BOUND_RATIO * compute_rate,
        warm_up=_FIRST_EPOCH_STEPS if measured_before else _WARM_UP_STEPS,
        to_beat=context.spec.rate_to_beat,
    )
    storage_rate = _timed_run(context, model, data, clock)
    _send_readings(context, clock, compute_rate, input_rate, storage_rate)


def confirm(context: TrialContext, loaded: Workload) -> None:
    """Train a short epoch with validation, then time a longer run in the epoch after it."""
    model = build_model(context, loaded)
    data = open_training(context, loaded)
    validation: dict[str, Any] = {}
    if loaded.validation is not None:
        validation = open_validation(context, loaded).validation_arguments(_VALIDATION_STEPS)
    _train_on_longest(context, model)
    first = StepClock(data.batch_samples, math.inf, warm_up=0, steps=_FIRST_EPOCH_STEPS)
    short = data.fit_arguments(_FIRST_EPOCH_STEPS * steps_per_execution(model))
    _fit(context, model, data, {**short, **validation}, first, phase=Phase.FIRST_EPOCH)
    clock = _fit_clock(context, model, data, drain=context.spec.input_bound, enough_spread=0.0)
    storage_rate = _timed_run(context, model, data, clock)
    _send_readings(context, clock, None, None, storage_rate)


def _timed_run(context: TrialContext, model: Any, data: FitInput, clock: StepClock) -> float | None:
    """Train until the clock is done; returns the bytes per second that the run read from storage."""
    before, started = _storage_bytes(), time.perf_counter()
    _fit(context, model, data, data.fit_arguments(_MOST_STEPS), clock, phase=Phase.TRAINING)
    after = _storage_bytes()
    return None if before is None or after is None else max(0, after - before) / (time.perf_counter() - started)


def _storage_bytes() -> int | None:
    """Bytes that this process and its workers have read from storage, without the page cache; None if not reported."""
    process = psutil.Process()
    readings = [_bytes_read_by(member) for member in (process, *process.children(recursive=True))]
    return None if None in readings else sum(reading or 0 for reading in readings)


def _bytes_read_by(process: psutil.Process) -> int | None:
    """Bytes that a process has read; 0 if it has ended, since its parent then counts them."""
    try:
        return int(process.io_counters().read_bytes)
    except psutil.NoSuchProcess:
        return 0
    except (psutil.AccessDenied, AttributeError):
        return None


def _fit_clock(
    context: TrialContext,
    model: Any,
    data: FitInput,
    *,
    drain: bool,
    warm_up: int = _WARM_UP_STEPS,
    enough_spread: float = 0.02,
    to_beat: float | None = None,
) -> StepClock:
    """Make a clock for the end-to-end run, which stalls until the queue is full.

    With `drain`, the batches that the full queue held are not counted: the pipeline may not keep up with the steps.
    """
    counts = data.batches_made() is not None
    made_before = data.batches_made() or 0
    queue = data.applied.queue_batches + _BATCHES_AHEAD if data.applied.has_queue else 0

    def stall() -> None:
        context.enter(Phase.FILLING_QUEUE)
        if counts:
            wait_until_full(lambda: data.batches_made() or 0, data.batch_seconds)
            clock.queued = (data.batches_made() or 0) - made_before - clock.steps_done * steps_per_execution(model)
        else:
            time.sleep(min(STALL_SECONDS, queue * data.batch_seconds))
        context.enter(Phase.QUEUE_FULL)
        time.sleep(_READING_SECONDS)
        context.enter(Phase.TRAINING)

    clock = StepClock(
        data.batch_samples * steps_per_execution(model),
        context.spec.measure_seconds,
        warm_up=warm_up,
        prefilled=math.ceil(queue / steps_per_execution(model)) if drain else 0,
        stall=stall if queue else None,
        enough_spread=enough_spread,
        to_beat=to_beat,
    )
    return clock


def _steps(
    flavour: Any, context: TrialContext, clock: StepClock, *, ends_by_itself: bool, after_first: Phase | None
) -> Any:
    """Make a callback that drives the clock, stops the run when the clock is done, and reports when validation begins.

    A step of the clock is one call of the train function: `steps_per_execution` batches.
    """

    class Steps(flavour.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
        _is_first = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.step_ended()
            if self._is_first and after_first is not None:
                context.enter(after_first)
            self._is_first = False
            if clock.done and not ends_by_itself:
                self.model.stop_training = True

        def on_test_begin(self, logs: Any = None) -> None:
            context.enter(Phase.VALIDATION)

    return Steps()


def _fit(
    context: TrialContext,
    model: Any,
    data: FitInput,
    arguments: Mapping[str, Any],
    clock: StepClock,
    *,
    phase: Phase,
    after_first: Phase | None = None,
) -> None:
    """Train until the clock is done; data that ends by itself after the clock's steps leaves no enqueuer running."""
    context.enter(phase)
    ends_by_itself = clock.steps is not None and data.ends_by_itself
    steps = _steps(keras_of(model), context, clock, ends_by_itself=ends_by_itself, after_first=after_first)
    model.fit(**{"verbose": 0, **arguments, "callbacks": [steps]})


def _compute_rate(context: TrialContext, model: Any, data: FitInput) -> Rate:
    """Time the step alone, on one repeated batch; on a few if batches differ in shape."""
    clock = StepClock(data.batch_samples * steps_per_execution(model), _COMPUTE_SECONDS)
    shapes = batch_shapes.load(context.folder)
    batches = [data.batch()] if shapes is None else list(itertools.islice(data.look(), _VARIED_BATCHES))
    opening = [] if shapes is None else shapes.resized(data.batch_samples)
    arguments = {"x": repeated(keras_of(model), batches, _MOST_STEPS, opening)}
    _fit(context, model, data, arguments, clock, phase=Phase.FIRST_STEP, after_first=Phase.COMPUTE_ALONE)
    return _rate_of(clock)


def _input_rate(context: TrialContext, flavour: Any, data: FitInput) -> Rate:
    """Time the pipeline alone: `fit` with a model whose step does nothing. It ends by itself and leaves no worker."""
    workers = data.applied.worker_count(os.cpu_count() or 1)
    warm_up = workers + 1  # the first batches of all workers arrive at the same time
    batch_seconds = max(data.batch_seconds / min(workers, os.cpu_count() or 1), _PASSING_SECONDS)
    steps = max(workers, _FEWEST_INPUT_STEPS, math.ceil(_INPUT_SECONDS / batch_seconds))
    idle = idle_model(flavour)
    ends = steps if data.ends_by_itself else None
    clock = StepClock(data.batch_samples, _INPUT_SECONDS, warm_up=warm_up, steps=ends)
    _fit(context, idle, data, data.fit_arguments(warm_up + steps), clock, phase=Phase.INPUT_ALONE)
    del idle
    gc.collect()  # else the batches that it holds count for the training that follows
    return _rate_of(clock)


def _rate_of(clock: StepClock) -> Rate:
    rate = clock.rate()
    assert rate is not None, "the run was long enough by construction"
    return rate


def _send_readings(
    context: TrialContext,
    clock: StepClock,
    compute_rate: float | None,
    input_rate: float | None,
    storage_rate: float | None,
) -> None:
    rate = _rate_of(clock)
    context.send(
        readings=Readings(
            samples_per_second=rate.samples_per_second,
            spread=rate.spread if math.isfinite(rate.spread) else None,
            step_seconds=rate.step_seconds,
            steps=rate.steps,
            compute_samples_per_second=compute_rate,
            input_samples_per_second=input_rate,
            queued_batches=clock.queued,
            storage_bytes_per_second=storage_rate,
            device_peak_bytes=context.peaks.highest(),
            device_peak_bytes_by_phase={str(phase): size for phase, size in context.peaks.by_phase.items()},
        )
    )
