"""What a trial's process does: describe the workload, measure a config, or confirm one (this module loads Keras).

Three rates are taken, all through `Model.fit`: the real thing; the same step on one batch again and again (compute); the
same pipeline with a step that does nothing (input). Keras fetches inside its compiled train function, so that nothing
finer can split waiting from computing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from autofit import backends
from autofit.errors import UsageError
from autofit.inputs import FitInput, knobs_of, open_input
from autofit.inputs.window import OneBatch
from autofit.records import Description
from autofit.trial.job import Job
from autofit.trial.meter import Rate, StepClock, wait_until_full
from autofit.workload import Reference, Workload

_COMPUTE_SECONDS = 0.8
_INPUT_SECONDS = 0.5
_PASSING_SECONDS = 0.002  # what a batch takes to pass through Keras and tf.data, however fast it is made
_MOST_STEPS = 20_000  # Keras shuffles the indices of an epoch in a list: long enough, and short to shuffle
_WARM_UP_STEPS = 2  # after the compute rate, in whose run the step was traced and warmed
_COLD_WARM_UP_STEPS = 6  # steps 2 to 6 of a process are up to twice as slow
_CONFIRM_VALIDATION_STEPS = 10
_SECOND_EPOCH_STEPS = 5
_PREFETCHED_STEPS = 2  # without a queue tf.data still prefetches a little


def _build_model(job: Job, loaded: Workload) -> keras.Model:
    job.enter("building the model")
    build = loaded.build_model
    build = build.resolve() if isinstance(build, Reference) else build
    model = build(**loaded.model_kwargs)
    if not isinstance(model, keras.Model):
        raise UsageError(f"build_model returned a {type(model).__name__}; it must return a compiled keras.Model")
    if not model.compiled:
        raise UsageError("build_model returned a model that is not compiled; call model.compile(...) in it")
    return model


def _open(job: Job, data: Any, kwargs: Mapping[str, Any]) -> tuple[FitInput, tuple[str, ...]]:
    data = data.resolve() if isinstance(data, Reference) else data
    opened = open_input(data, kwargs, job.config, job.report_error)
    return opened, (("batch_size",) if opened.kind == "arrays" else knobs_of(data, kwargs))


def _open_training(job: Job, loaded: Workload) -> tuple[FitInput, tuple[str, ...]]:
    job.enter("opening the data")
    return _open(job, loaded.data, loaded.data_kwargs)


def _describe(job: Job, loaded: Workload) -> None:
    data, knobs = _open_training(job, loaded)
    model = _build_model(job, loaded)
    if not model.built:
        model(data.batch()[0])
    model.optimizer.build(model.trainable_variables)
    batch = data.batch()
    leaves = _leaves(batch)
    job.send(
        description=asdict(
            Description(
                input_kind=data.kind,
                knobs=knobs,
                sample_count=data.sample_count(),
                sample_bytes=math.ceil(sum(a.nbytes for a in leaves) / data.batch_samples),
                parameter_count=sum(math.prod(v.shape) for v in model.variables),
                parameter_bytes=_bytes_of(model.variables),
                optimizer_bytes=_bytes_of(model.optimizer.variables),
                jit_compile=bool(model.jit_compile),
                fingerprint=_model_fingerprint(model, leaves),
                versions={"backend": backends.current().name, **backends.current().versions()},
            )
        )
    )


def _measure(job: Job, loaded: Workload) -> None:
    """Compute rate, input rate, then the real thing last, because it may leave an enqueuer running."""
    model = _build_model(job, loaded)
    data, _ = _open_training(job, loaded)
    job.enter("first step")
    compute = _compute_rate(job, model, data)
    job.enter("input pipeline alone")
    inputs = _input_rate(job, data)
    clock = _fit_clock(
        job, data, job.spec["measure_seconds"], drain=inputs.samples_per_second < 1.2 * compute.samples_per_second
    )
    job.enter("training")
    _fit(model, data, data.fit_arguments(_MOST_STEPS), clock)
    _send_measurement(job, clock, compute, inputs)


def _confirm(job: Job, loaded: Workload) -> None:
    """A longer run that ends by itself, with validation, and the beginning of a second epoch."""
    model = _build_model(job, loaded)
    data, _ = _open_training(job, loaded)
    validation: dict[str, Any] = {}
    if loaded.validation is not None:
        opened, _ = _open(job, loaded.validation, loaded.validation_kwargs)
        validation = opened.validation_arguments(_CONFIRM_VALIDATION_STEPS)
    job.enter("training")
    expected = job.spec["expected_samples_per_second"] or 0
    steps = max(5, math.ceil(expected * job.spec["measure_seconds"] / data.batch_samples))
    drain = job.spec["input_bound"]
    clock = _fit_clock(job, data, math.inf, drain=drain, warm_up=_COLD_WARM_UP_STEPS, steps=steps)
    _fit(model, data, {**data.fit_arguments(clock.max_steps or steps), **validation}, clock)
    job.enter("second epoch")
    again = StepClock(data.batch_samples, math.inf, warm_up=0, steps=_SECOND_EPOCH_STEPS)
    _fit(model, data, data.fit_arguments(_SECOND_EPOCH_STEPS), again)
    _send_measurement(job, clock, None, None)


def _fit_clock(
    job: Job, data: FitInput, seconds: float, *, drain: bool, warm_up: int = _WARM_UP_STEPS, steps: int | None = None
) -> StepClock:
    """A clock for the real pipeline: stalls until the queue is full, and skips what was prefilled where that matters.

    With `drain`, the batches that the full queue held are not counted, since the pipeline may not keep up with the steps
    that eat them; the tail is as long as what may wait in the queue and in the workers.
    """
    queue = (job.config.max_queue_size or 0) + 1 if job.config.has_queue else 0
    made = data.batches_made() is not None and job.config.has_queue

    def stall() -> None:
        job.enter("filling the queue")
        wait_until_full(lambda: data.batches_made() or 0, data.batch_seconds)
        job.enter("training")

    prefilled = queue + 2 if drain and queue else 0
    return StepClock(
        data.batch_samples,
        seconds,
        warm_up=warm_up,
        prefilled=prefilled,
        steps=steps,
        tail=queue + (job.config.workers or 0) if queue else _PREFETCHED_STEPS,
        stall=stall if made else None,
    )


def _fit(
    model: keras.Model,
    data: FitInput,
    arguments: Mapping[str, Any],
    clock: StepClock,
    first_ended: Callable[[], None] | None = None,
) -> None:
    """Train until the clock is done; what ends by itself after the clock's steps is let end, and leaves no enqueuer."""
    ends_by_itself = clock.max_steps is not None and data.ends_by_itself

    def step_ended(batch: int, logs: Any) -> None:
        clock.step_ended()
        if batch == 0 and first_ended is not None:
            first_ended()
        if clock.done and not ends_by_itself:
            model.stop_training = True

    model.fit(**{"verbose": 0, **arguments, "callbacks": [keras.callbacks.LambdaCallback(on_train_batch_end=step_ended)]})


def _compute_rate(job: Job, model: Any, data: FitInput) -> Rate:
    """The same step on one batch again and again."""
    clock = StepClock(data.batch_samples, _COMPUTE_SECONDS, warm_up=_WARM_UP_STEPS)

    _fit(model, data, {"x": OneBatch(data.batch(), _MOST_STEPS)}, clock, first_ended=lambda: job.enter("compute alone"))
    return _known(clock)


def _input_rate(job: Job, data: FitInput) -> Rate:
    """The pipeline alone: the same `fit` with a model whose step does nothing. It ends by itself, leaving no worker."""

    class Idle(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"loss": keras.ops.zeros(())}

    workers = max(1, job.config.workers or 1)
    warm_up = workers + 1  # the first batch of each worker comes at the same time
    batch_seconds = max(data.batch_seconds / min(workers, os.cpu_count() or 1), _PASSING_SECONDS)
    steps = max(workers, 4, math.ceil(_INPUT_SECONDS / batch_seconds))
    idle = Idle()
    idle.compile(jit_compile=False)
    ends = steps if data.ends_by_itself else None
    clock = StepClock(data.batch_samples, _INPUT_SECONDS, warm_up=warm_up, steps=ends)
    _fit(idle, data, data.fit_arguments(warm_up + steps), clock)
    return _known(clock)


def _known(clock: StepClock) -> Rate:
    rate = clock.rate()
    assert rate is not None, "the run was long enough by construction"
    return rate


def _send_measurement(job: Job, clock: StepClock, compute: Rate | None, inputs: Rate | None) -> None:
    rate = _known(clock)
    job.send(
        measurement={
            "samples_per_second": rate.samples_per_second,
            "spread": rate.spread if math.isfinite(rate.spread) else None,
            "step_seconds": rate.step_seconds,
            "steps": rate.steps,
            "compute_samples_per_second": compute and compute.samples_per_second,
            "input_samples_per_second": inputs and inputs.samples_per_second,
            "device_peak_bytes": backends.current().peak_bytes(job.device),
        }
    )


def _leaves(nest: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in keras.tree.flatten(nest)]


def _bytes_of(variables: Any) -> int:
    return sum(math.prod(v.shape) * np.dtype(keras.backend.standardize_dtype(v.dtype)).itemsize for v in variables)


def _model_fingerprint(model: Any, batch: list[Any]) -> str:
    """A hash of the architecture, how it is compiled, and the form of a batch."""
    try:
        architecture = model.to_json()
    except Exception:  # a custom layer without get_config: what it is made of must do
        architecture = repr([(type(layer).__qualname__, [tuple(w.shape) for w in layer.weights]) for layer in model.layers])
    compiled = repr(model.get_compile_config())
    form = repr([(a.shape[1:], str(a.dtype)) for a in batch])
    weights = repr([(tuple(v.shape), str(v.dtype)) for v in model.variables])
    return hashlib.sha256("\n".join((architecture, compiled, form, weights)).encode()).hexdigest()[:16]


ROLES: dict[str, Callable[[Job, Workload], None]] = {"describe": _describe, "measure": _measure, "confirm": _confirm}
