"""Describe a workload before anything is trained; loads Keras.

    open the data ──> build the model ──> trace the train step ──> Description ──> memory estimates

Tracing the step builds exactly what a plain `fit` builds: lazy layers, and the variables of the
optimizers that the step uses. A step that cannot be traced is run once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras

from autofit import backends
from autofit.backends.protocol import (
    StepEstimator,
    bytes_of_optimizers,
    bytes_of_variables,
)
from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.machine import Placement
from autofit.records.states import Phase
from autofit.records.units import counted
from autofit.trial.wire import Message
from autofit.trial.worker import batch_shapes, data_workers
from autofit.trial.worker.batch_dependence import dependences_of
from autofit.trial.worker.bench import Bench
from autofit.trial.worker.build import build_model, is_own, takes_batch_size
from autofit.trial.worker.estimates import trace
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.open import open_data
from autofit.trial.worker.sizes import (
    fits_twice,
    why_data_has_one_size,
    why_step_has_one_size,
)
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.inputs.batch import bytes_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput, call_reported
from autofit.workload.inputs.knobs import (
    as_written,
    defaults_of,
    makes_processes,
    required_of,
)
from autofit.workload.workload import Workload

# a knob of the data or the model, with its name in the factory or in `fit`
Names = Mapping[str, str]


def describe(
    context: TrialContext,
    loaded: Workload,
    named: Mapping[str, Names],
    of_script: Mapping[str, Any],
) -> None:
    """Send the description of a workload, then the estimates of memory.

    `named` are the knobs of its data, and `of_script` fields that are known of a script.
    """
    context = _with_defaults(context, loaded, named["data"])
    # the data is opened, and its workers are tried, before there is a model: if they hang, it is
    # not because of what the model has started
    data, held_out = open_data(context, loaded)
    knobs = data.knobs(named["data"])
    fork_problem = _fork_problem(context, data, knobs)
    if context.spec.gpus:
        backends.current().decide_as_on_gpu()
    model = build_model(context, loaded)
    notice_of_model = _notice_of_model(model, context.placement)
    bench = Bench(context, loaded, model, data, held_out)
    arrays = data.array_bytes()
    if held_out is not None:
        arrays = arrays.then(held_out.array_bytes())

    shapes = _scanned(bench)
    batch = data.batch() if shapes is None else shapes.longest
    batch = fit_options.with_class_weight(batch, bench.options)
    traced = trace(bench, batch, arrays.tensors)
    one_size: int | None = None
    reason = ""
    # a script makes its data once, and each trial checks the size of its batches
    if "batch_size" in knobs and not of_script:
        one_size, reason = _only_size(bench, traced.one_size)

    notices = (
        fork_problem,
        *_notices(bench, sum(arrays.tensors)),
        notice_of_model,
        bench.callbacks.notice(of_script=loaded.script is not None),
    )
    description = Description(
        fixed_batch_size=one_size,
        processes_hang=fork_problem not in (None, data_workers.SAME_NUMBERS),
        shapes=str(shapes or ""),
        notices=tuple(filter(None, notices)),
        mapped_bytes=arrays.mapped,
        tensor_bytes=sum(arrays.tensors),
        conversion_bytes=arrays.conversion,
        **_of_data(bench, knobs, reason),
        **_of_validation(loaded, named.get("validation", {})),
        **_of_model(bench, batch),
        **_of_step(bench, traced.estimator),
    )
    if of_script:
        description = _of_places(description, of_script)
    # before the estimates: compiling may end the process, and a tune can do without them
    context.send(Message(description=description))
    sizes = [data.batch_samples]
    if "batch_size" in knobs and one_size is None and traced.one_size is None:
        sizes = list(dict.fromkeys(context.spec.batch_sizes))
    context.enter(Phase.ESTIMATING)
    traced.send_estimates(context, sizes, description.sample_count)


def _with_defaults(
    context: TrialContext, loaded: Workload, knobs: Names
) -> TrialContext:
    """Return the context with a config whose knobs have the values that the data gives them."""
    spec = context.spec
    config = as_written(spec.config, resolve_reference("data", loaded.data), knobs)
    if config.batch_size is not None:
        config = replace(config, batch_size=context.placement.shared(config.batch_size))
    return replace(context, spec=replace(spec, config=config))


def _only_size(bench: Bench, traced_size: int | None) -> tuple[int | None, str]:
    """Return the only size of batches that the workload takes, and why; None if it takes others."""
    if reason := why_data_has_one_size(bench):
        return bench.data.batch_samples, reason
    if _model_takes_batch(bench.loaded):
        return None, ""
    reason = why_step_has_one_size(bench, traced_size)
    return traced_size if reason else None, reason


def _model_takes_batch(loaded: Workload) -> bool:
    build = resolve_reference("build_model", loaded.build_model)
    return takes_batch_size(build, loaded.model_kwargs)


def _of_data(bench: Bench, knobs: Names, why_one_size: str) -> dict[str, Any]:
    data = bench.data
    loaded = bench.loaded
    factory = resolve_reference("data", loaded.data)
    given_steps = bench.options.get(fit_options.STEPS_PER_EPOCH)
    untuned = data.not_taken(factory, loaded.data_kwargs) | data.kept(knobs)
    if why_one_size:
        untuned["batch_size"] = why_one_size
    return {
        "input_kind": data.kind,
        "knobs": knobs,
        "required": required_of(factory, knobs.values()),
        "defaults": _defaults(bench, factory, knobs),
        "untuned": untuned,
        "sample_count": given_steps * data.batch_samples
        if given_steps
        else data.sample_count(),
        "counts_last_batch": bool(given_steps) or data.counts_last_batch,
        "batch_parts": data.part_count,
        "batch_callbacks": bench.callbacks.of_batches,
        "left_out_callbacks": bench.callbacks.left_out,
        "epochs": bench.options.get("epochs", 1),
        "validations_per_epoch": fit_options.validations_per_epoch(bench.options),
    }


def _of_validation(loaded: Workload, knobs: Names) -> dict[str, Any]:
    validation = resolve_reference("validation", loaded.validation)
    return {
        "validation_knobs": knobs,
        "validation_required": required_of(validation, knobs.values()),
    }


def _of_model(bench: Bench, batch: Any) -> dict[str, Any]:
    model = bench.model
    return {
        "model_takes_batch": _model_takes_batch(bench.loaded),
        "parameter_count": sum(math.prod(v.shape) for v in model.variables),
        "parameter_bytes": bytes_of_variables(model.variables),
        "jit_compile": bool(model.jit_compile),
        "fingerprint": _model_fingerprint(model, batch),
        "sample_bytes": math.ceil(bytes_of(batch) / bench.data.batch_samples),
        "batch_dependences": tuple(dict.fromkeys(dependences_of(model, batch))),
    }


def _of_step(bench: Bench, step: StepEstimator | None) -> dict[str, Any]:
    model = bench.model
    backend = backends.current()
    placement = bench.context.placement
    optimizer = getattr(model, "optimizer", None)
    name = ""
    if optimizer is not None:
        name = type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    place = ""
    if bench.method.trains:
        place = accumulation.place_of(
            model, resolve_reference("build_model", bench.loaded.build_model)
        )
    is_unused = step is not None and not step.uses_model_optimizer
    if is_unused and place != accumulation.BUILD_MODEL:
        place = ""
    alternates = backend.alternates_on_cpu and not placement.gpus
    if bench.data.has_processes and not backend.steps_are_async:
        alternates = True
    return {
        "optimizer": name,
        "optimizer_bytes": bytes_of_optimizers(model)
        if step is None
        else step.optimizer_bytes,
        "accumulates_by": place,
        "accumulation_steps": accumulation.steps_in(model),
        "stacks_steps": backend.stacks_steps(),
        "takes_turns": bench.data.takes_turns and alternates,
        "steps_ahead": 0 if placement.device else backend.steps_ahead,
        "versions": {"backend": backend.name, **backend.versions()},
    }


def _of_places(description: Description, of_script: Mapping[str, Any]) -> Description:
    """Add what is known of a script, whose knobs have the values that it sets."""
    # a knob that the data or the backend does not have has a place for nothing
    own = {*description.knobs, *description.defaults}
    places = {knob: place for knob, place in of_script["places"].items() if knob in own}
    defaults = dict(description.defaults)
    if STEPS_PER_EXECUTION not in places:
        defaults.pop(STEPS_PER_EXECUTION, None)
    for knob in description.knobs:
        if knob in places and places[knob].value is not None:
            defaults[knob] = places[knob].value
    own_fields = {
        "notices": (*of_script["notices"], *description.notices),
        "fingerprint": description.fingerprint + of_script["fingerprint"],
        "places": places,
        "defaults": defaults,
    }
    return replace(description, **{**of_script, **own_fields})


def _scanned(bench: Bench) -> batch_shapes.BatchShapes | None:
    """Find and save the longest and the shortest batch; return None if all have one shape."""
    context = bench.context
    data = bench.data
    model = bench.model
    inputs = getattr(model, "inputs", None) if model.built else None
    shapes_of_inputs = [tensor.shape[1:] for tensor in keras.tree.flatten(inputs or [])]
    if shapes_of_inputs and not any(None in shape for shape in shapes_of_inputs):
        return None
    context.enter(Phase.SCANNING)
    lengths = {length_of(leaf) for leaf in leaves(data.batch())} - {0}
    asked: int | None = None
    # graphs have nodes and edges; and samples are counted in this process, where workers are not
    if len(lengths) == 1 and not data.leaves_workers:
        asked = context.spec.config.batch_size or data.batch_samples
    shapes: batch_shapes.BatchShapes | None
    shapes = call_reported(
        context.report_error, batch_shapes.scan, data.user_batches(), asked
    )
    if shapes is not None:
        shapes.save(context.folder)
        if shapes.asked is not None:
            data.count_samples(shapes.asked)
    return shapes


def _notices(bench: Bench, array_bytes: int) -> Iterator[str]:
    device = bench.context.placement.device
    limit_bytes = bench.context.spec.limits.device_bytes
    if device is not None:
        yield from backends.current().problems(device, limit_bytes, array_bytes)
    if bench.method.name == fit_options.PREDICT:
        yield (
            "predict keeps the outputs of all samples in memory until it ends, which trials do not "
            "count. Leave room for them, or predict a part of the data at a time"
        )
    yield from tfdata.cache_notices()


def _notice_of_model(model: Any, placement: Placement) -> str:
    """Return what to know about a model on several devices; empty if there is nothing to say."""
    backend = backends.current()
    name, count = backend.distribution_of(model) or ("", 1)
    if placement.count == count == 1:
        if not name:
            return ""
        return (
            f"the model is distributed by {name}, but on one device: to tune for two, set "
            "device: 2x gpu"
        )
    needed = backend.distribution
    if (name, count) != (needed, placement.count):
        by = f" by {name}" if name else ""
        raise UsageError(
            f"this tune uses {counted(placement.count, 'device')}, but the model that build_model "
            f"returned trains on {count}{by}. Build it under a {needed} of {placement.count}, or "
            "set distribution: data_parallel",
            key="device",
        )
    return (
        f"{count} devices share each batch: batch sizes are global, and multiples of {count}. In "
        "your run, leave out a last batch that is not"
    )


def _defaults(bench: Bench, factory: Any, knobs: Names) -> dict[str, Any]:
    """Return the values that the knobs have without a config, of the data and of the model."""
    data = bench.data
    model = bench.model
    method = bench.method
    # those of arrays are arguments of `fit`
    own: Names = {} if data.fit_makes_batches else knobs
    defaults = {
        knob: value
        for knob, value in data.applied.values().items()
        if knob in own or data.has_processes
    }
    defaults |= defaults_of(factory, own, autotunes=data.autotunes)
    factory_makes_processes = not data.keras_starts_workers and makes_processes(own)
    if data.has_processes or factory_makes_processes:
        defaults["use_multiprocessing"] = True
    functions = {method.function}
    if method.trains:
        functions.add("test_function")  # of validation
    # a function of the user's own may ignore it
    has_own = any(is_own(model, f"make_{function}") for function in functions)
    if backends.current().has_steps_per_execution and not has_own:
        defaults[STEPS_PER_EXECUTION] = model.steps_per_execution
    return defaults


def _fork_problem(context: TrialContext, data: FitInput, knobs: Names) -> str | None:
    """Return why worker processes cannot be used; None if they can, or if none are tried."""
    tries_processes = "use_multiprocessing" in knobs
    if not tries_processes and not (data.forks_workers and "workers" in knobs):
        return None
    context.enter(Phase.FORKING)
    backend = backends.current()
    # on a GPU, this applies to Keras's own pool
    if (
        context.placement.gpus
        and not data.has_processes
        and backend.fork_problem_on_gpu
    ):
        return backend.fork_problem_on_gpu
    backend.start()  # its threads are there in training, too
    is_sent = data.keras_starts_workers and fits_twice(context)
    sent = data.fit_arguments(1) if is_sent else None
    problem = data_workers.problem_of(lambda: next(data.user_batches()), sent)
    # torch seeds each worker
    if data.has_processes and problem == data_workers.SAME_NUMBERS:
        return None
    return problem


def _model_fingerprint(model: Any, batch: Any) -> str:
    """Return what differs between models of the same source code, which may read a file."""
    compiled = (getattr(model, name, None) for name in ("optimizer", "loss"))
    parts = [type(part).__qualname__ for part in (*model.layers, *compiled)]
    shapes = [(tuple(v.shape), str(v.dtype)) for v in model.variables]
    form = [(tuple(array.shape[1:]), array.dtype.name) for array in leaves(batch)]
    return hashlib.sha256(repr((parts, shapes, form)).encode()).hexdigest()[:16]
