"""Describe a workload before anything is trained; loads Keras.

    open the data ──> build the model ──> trace the train step ──> Description ──> memory estimates, one by one

Tracing the step builds exactly what a plain `fit` builds: lazy layers, and the variables of the optimizers that the step
uses. A step that cannot be traced is run once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
from psutil import Process

from autofit import backends
from autofit.backends.protocol import bytes_of_optimizers, bytes_of_variables
from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.machine import Placement
from autofit.records.states import Phase
from autofit.records.units import counted
from autofit.trial.wire import Message
from autofit.trial.worker import batch_shapes, data_workers
from autofit.trial.worker.batch_dependence import dependences_of
from autofit.trial.worker.bench import (
    Bench,
    Run,
    build_model,
    distribution_of,
    is_own,
    open_data,
    takes_batch_size,
)
from autofit.trial.worker.estimates import trace
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.step_clock import StepClock
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.batch import bytes_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput, call_reported
from autofit.workload.inputs.kinds import open_input
from autofit.workload.inputs.knobs import as_written, defaults_of, makes_processes, required_of
from autofit.workload.inputs.pydataset import PyDatasetInput
from autofit.workload.inputs.torch_loader import TorchLoader
from autofit.workload.workload import Workload

_BY_DATA = (
    "the data makes batches of {} samples for any batch_size. Use the argument batch_size in the function that makes the "
    "data, or fix batch_size in data_kwargs"
)
_BY_LENGTH = "its length does not follow batch_size. Compute the number of batches in __len__, from the present batch_size"
_BY_STEP = (
    "the train step accepts only batches of {} samples. Give build_model a parameter batch_size, which gets each size; or "
    "remove batch_size from the model's Input; or take the batch size from the data in train_step (ops.shape(x)[0])"
)


def describe(
    context: TrialContext,
    loaded: Workload,
    named: Mapping[str, Mapping[str, str]],
    of_script: Mapping[str, Any] = {},
) -> None:
    """Send the description of a workload, then the estimates of memory.

    `named` are the knobs of its data, and `of_script` fields that are known of a script.
    """
    factory, build = (
        resolve_reference("data", loaded.data),
        resolve_reference("build_model", loaded.build_model),
    )
    config = as_written(context.spec.config, factory, named["data"])
    if config.batch_size is not None:
        config = replace(config, batch_size=context.placement.shared(config.batch_size))
    context = replace(context, spec=replace(context.spec, config=config))
    (data, held_out), backend = open_data(context, loaded, config), backends.current()
    knobs = data.knobs(named["data"])
    fork_problem = _fork_problem(context, data, knobs)
    if context.spec.gpus:
        backend.decide_as_on_gpu()
    model = build_model(context, loaded)
    notice_of_model = _notice_of_model(model, context.placement)
    bench = Bench(context, loaded, model, data, held_out)
    arrays = (
        data.array_bytes() if held_out is None else data.array_bytes().then(held_out.array_bytes())
    )

    shapes = _scanned(bench)
    batch = fit_options.with_class_weight(
        data.batch() if shapes is None else shapes.longest, bench.options
    )
    traced = trace(bench, batch, arrays.tensors)
    place = accumulation.place_of(model, build) if bench.method.trains else ""
    step = traced.estimator
    if step is not None and not step.uses_model_optimizer and place != accumulation.BUILD_MODEL:
        place = ""
    takes_batch, one_size, reason = takes_batch_size(build, loaded.model_kwargs), None, ""
    # a script makes its data once, and each trial checks the size of its batches
    if "batch_size" in knobs and not of_script:
        one_size, reason = _size_of_data(bench, loaded)
        if one_size is None and not takes_batch and _takes_one_size(bench, loaded, traced.one_size):
            one_size, reason = traced.one_size, _BY_STEP
    untuned_size = {} if one_size is None else {"batch_size": reason.format(one_size)}

    given_steps = bench.options.get(fit_options.STEPS_PER_EPOCH)
    processes_alternate = data.has_processes and not backend.steps_are_async
    alternates = processes_alternate or (backend.alternates_on_cpu and not context.placement.gpus)
    optimizer = getattr(model, "optimizer", None)
    validation_knobs = named.get("validation", {})
    of_script = {**of_script}
    notices = (
        *of_script.pop("notices", ()),
        fork_problem,
        *_notices(bench, sum(arrays.tensors)),
        notice_of_model,
        bench.callbacks.notice(of_script=loaded.script is not None),
    )
    description = Description(
        input_kind=data.kind,
        knobs=knobs,
        required=required_of(factory, knobs.values()),
        defaults=_defaults(bench, factory, knobs),
        untuned=data.not_taken(factory, loaded.data_kwargs) | data.kept(knobs) | untuned_size,
        fixed_batch_size=one_size,
        model_takes_batch=takes_batch,
        processes_hang=fork_problem not in (None, data_workers.SAME_NUMBERS),
        sample_count=given_steps * data.batch_samples if given_steps else data.sample_count(),
        counts_last_batch=bool(given_steps) or data.counts_last_batch,
        sample_bytes=math.ceil(bytes_of(batch) / data.batch_samples),
        shapes="" if shapes is None else str(shapes),
        batch_parts=data.part_count,
        validation_knobs=validation_knobs,
        validation_required=required_of(
            resolve_reference("validation", loaded.validation), validation_knobs.values()
        ),
        parameter_count=sum(math.prod(v.shape) for v in model.variables),
        parameter_bytes=bytes_of_variables(model.variables),
        optimizer=""
        if optimizer is None
        else type(getattr(optimizer, "inner_optimizer", optimizer)).__name__,
        optimizer_bytes=bytes_of_optimizers(model) if step is None else step.optimizer_bytes,
        accumulates_by=place,
        jit_compile=bool(model.jit_compile),
        fingerprint=_model_fingerprint(model, batch) + of_script.pop("fingerprint", ""),
        batch_callbacks=bench.callbacks.of_batches,
        batch_dependences=tuple(dict.fromkeys(dependences_of(model, batch))),
        accumulation_steps=accumulation.steps_in(model),
        left_out_callbacks=bench.callbacks.left_out,
        mapped_bytes=arrays.mapped,
        tensor_bytes=sum(arrays.tensors),
        conversion_bytes=arrays.conversion,
        stacks_steps=backend.stacks_steps(),
        takes_turns=data.kind != tfdata.TfData.kind and alternates,
        steps_ahead=0 if context.placement.device else backend.steps_ahead,
        notices=tuple(filter(None, notices)),
        versions={"backend": backend.name, **backend.versions()},
    )
    if of_script:
        description = _of_places(description, of_script)
    context.send(Message(description=description))
    is_estimated_for_all = "batch_size" in knobs and one_size is None and traced.one_size is None
    sizes = (
        tuple(dict.fromkeys(context.spec.batch_sizes))
        if is_estimated_for_all
        else (data.batch_samples,)
    )
    context.enter(Phase.ESTIMATING)
    traced.send_estimates(context, sizes, description.sample_count)


def _of_places(description: Description, of_script: Mapping[str, Any]) -> Description:
    """Return a description with what is known of a script, whose knobs have the values that it
    sets.
    """
    # a knob that the data or the backend does not have has a place for nothing
    own = {*description.knobs, *description.defaults}
    places = {knob: place for knob, place in of_script["places"].items() if knob in own}
    defaults = dict(description.defaults)
    if STEPS_PER_EXECUTION not in places:
        defaults.pop(STEPS_PER_EXECUTION, None)
    for knob in description.knobs:
        if knob in places and places[knob].value is not None:
            defaults[knob] = places[knob].value
    return replace(description, **{**of_script, "places": places, "defaults": defaults})


def _size_of_data(bench: Bench, loaded: Workload) -> tuple[int | None, str]:
    """Return the size of the batches if the data makes no others, and why; None if it follows the knob."""
    config, data = bench.context.spec.config, bench.data
    asked, lengths = config.batch_size, [length_of(leaf) for leaf in leaves(data.batch())]
    if asked is None or data.kind == Arrays.kind or not _fits_twice(bench.context):
        return None, ""
    fewer = max(1, min(asked, *lengths) // 2)  # the data set may be smaller than one batch
    try:
        smaller = _opened_again(bench, loaded, fewer)
        again = [length_of(leaf) for leaf in leaves(smaller.batch())]
        # data may draw any number of batches, but a length that was computed for this size is too long for a larger one
        is_suspect = (
            data.kind == PyDatasetInput.kind and smaller.epoch_batches == data.epoch_batches
        )
        larger = _opened_again(bench, loaded, 2 * asked) if is_suspect else data
    except Exception:  # data that cannot make such small or large batches does follow the knob
        return None, ""
    if again == lengths and fewer not in lengths:
        return data.batch_samples, _BY_DATA
    try:
        larger.sample_count()  # it reads the last batch
    except Exception:
        return data.batch_samples, _BY_LENGTH
    return None, ""


def _fits_twice(context: TrialContext) -> bool:
    """Return whether the data may be opened a second time: the memory that it may hold must fit twice."""
    return 2 * Process().memory_info().rss <= context.spec.limits.host_bytes


def _takes_one_size(bench: Bench, loaded: Workload, traced_size: int | None) -> bool:
    """Return whether a step that could be traced for one size alone fails on real batches of another."""
    if traced_size is None or not _fits_twice(bench.context):
        return False
    size = traced_size // 2 or 2
    try:
        data = _opened_again(bench, loaded, size)
        run = Run(StepClock(size, math.inf, steps=1), Phase.OPENING_AGAIN)
        bench.run(data.fit_arguments(1), [run], ends_by_itself=data.ends_by_itself)
    except Exception:  # the user's code, which need not take this size
        return True
    return False


def _opened_again(bench: Bench, loaded: Workload, batch_size: int) -> FitInput:
    kept, config = (
        dict(vars(tfdata.reserved)),
        replace(bench.context.spec.config, batch_size=batch_size),
    )
    # The data need not open at this size, so an error is not reported. Neither its memory nor what its caches leave out
    # counts twice.
    bench.context.enter(Phase.OPENING_AGAIN)
    try:
        return open_input(
            resolve_reference("data", loaded.data), loaded.data_kwargs, config, lambda error: None
        )
    finally:
        vars(tfdata.reserved).update(kept)


def _scanned(bench: Bench) -> batch_shapes.BatchShapes | None:
    """Find and save the longest and the shortest batch; return None if the model or the batches have a single shape."""
    context, data, model = bench.context, bench.data, bench.model
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [] if model.built else [])
    if inputs and not any(None in tensor.shape[1:] for tensor in inputs):
        return None
    context.enter(Phase.SCANNING)
    has_one_length = (
        len({length_of(leaf) for leaf in leaves(data.batch())} - {0}) == 1
    )  # graphs have nodes and edges
    counts = (
        has_one_length and not data.leaves_workers
    )  # samples are counted in this process, where workers are not
    asked = (context.spec.config.batch_size or data.batch_samples) if counts else None
    shapes: batch_shapes.BatchShapes | None
    shapes = call_reported(context.report_error, batch_shapes.scan, data.user_batches(), asked)
    if shapes is not None:
        shapes.save(context.folder)
        if shapes.asked is not None:
            data.count_samples(shapes.asked)
    return shapes


def _notices(bench: Bench, array_bytes: int) -> Iterator[str]:
    device, limit_bytes = bench.context.placement.device, bench.context.spec.limits.device_bytes
    yield from (
        () if device is None else backends.current().problems(device, limit_bytes, array_bytes)
    )
    if bench.method.name == fit_options.PREDICT:
        yield (
            "predict keeps the outputs of all samples in memory until it ends, which trials do not count. Leave room for "
            "them, or predict a part of the data at a time"
        )
    yield from tfdata.cache_notices()


def _notice_of_model(model: Any, placement: Placement) -> str:  # empty if there is nothing to say
    (name, count), needed = distribution_of(model) or ("", 1), backends.current().distribution
    if placement.count == count == 1:
        return (
            name
            and f"the model is distributed by {name}, but on one device: to tune for two, set device: 2x gpu"
        )
    if (name, count) != (needed, placement.count):
        by = f" by {name}" if name else ""
        raise UsageError(
            f"this tune uses {counted(placement.count, 'device')}, but the model that build_model returned trains on "
            f"{count}{by}. Build it under a {needed} of {placement.count}, or set distribution: data_parallel",
            key="device",
        )
    return (
        f"{count} devices share each batch: batch sizes are global, and multiples of {count}. In your run, "
        "leave out a last batch that is not"
    )


def _defaults(bench: Bench, factory: Any, knobs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that the knobs have without a config: those of the data and of the model."""
    data, model, method = bench.data, bench.model, bench.method
    own = {} if data.kind == Arrays.kind else knobs  # theirs is an argument of `fit`
    applied = {
        knob: value
        for knob, value in data.applied.values().items()
        if knob in own or data.has_processes
    }
    defaults = {**applied, **defaults_of(factory, own, autotunes=data.autotunes)}
    if data.has_processes or (not data.keras_starts_workers and makes_processes(own)):
        defaults["use_multiprocessing"] = True
    # Keras's torch backend has none (Keras 3.15); a function of the user's own may ignore it, that of validation too
    functions = {method.function, "test_function"} if method.trains else {method.function}
    if keras.backend.backend() != "torch" and not any(
        is_own(model, f"make_{function}") for function in functions
    ):
        defaults[STEPS_PER_EXECUTION] = model.steps_per_execution
    return defaults


def _fork_problem(context: TrialContext, data: FitInput, knobs: Mapping[str, str]) -> str | None:
    if "use_multiprocessing" not in knobs and not (
        data.kind == TorchLoader.kind and "workers" in knobs
    ):  # grain spawns
        return None
    context.enter(Phase.FORKING)
    backend = backends.current()
    if (
        context.placement.gpus and not data.has_processes and backend.fork_problem_on_gpu
    ):  # applies to Keras's own pool
        return backend.fork_problem_on_gpu
    backend.start()  # its threads are there in training, too
    is_sent = data.keras_starts_workers and _fits_twice(context)
    sent = data.fit_arguments(1) if is_sent else None
    problem = data_workers.problem_of(lambda: next(data.user_batches()), sent)
    return (
        None if data.has_processes and problem == data_workers.SAME_NUMBERS else problem
    )  # torch seeds each worker


def _model_fingerprint(model: Any, batch: Any) -> str:
    """Return what tells models apart that the same source code builds: by a file or a variable that it reads."""
    compiled = (getattr(model, name, None) for name in ("optimizer", "loss"))
    parts = [type(part).__qualname__ for part in (*model.layers, *compiled)]
    shapes = [(tuple(v.shape), str(v.dtype)) for v in model.variables]
    form = [(tuple(array.shape[1:]), array.dtype.name) for array in leaves(batch)]
    return hashlib.sha256(repr((parts, shapes, form)).encode()).hexdigest()[:16]
