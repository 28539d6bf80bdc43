"""Describe a workload before anything is trained; loads Keras.

    open the data ──> build the model ──> tied to one batch size? ──> trace the train step ──> Description
                                                                               └──> memory estimates, one by one

Tracing the step builds exactly what a plain `fit` builds: lazy layers, and the variables of the optimizers that the step
uses. A step that cannot be traced is run once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras

from autofit import backends
from autofit.backends.protocol import bytes_of_variables
from autofit.errors import UsageError
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.machine import ON_CPU, Placement
from autofit.records.states import Phase
from autofit.records.units import counted, format_bytes
from autofit.trial.wire import Message
from autofit.trial.worker import batch_shapes, data_workers
from autofit.trial.worker.build import Bench, build_model, distribution_of, open_training, open_validation, takes_batch_size
from autofit.trial.worker.estimates import TracedWorkload, trace
from autofit.trial.worker.fit_call import FitCall, KerasCall, is_own
from autofit.trial.worker.job import TrialContext
from autofit.workload import fit_options
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.inputs.batch import bytes_of, leaves, length_of
from autofit.workload.inputs.fit_input import FitInput, call_reported
from autofit.workload.inputs.knobs import as_written, defaults_of, required_of
from autofit.workload.inputs.torch_loader import TorchLoader
from autofit.workload.workload import Workload

_BY_DATA = (
    "the data makes batches of {} samples for any batch_size. Use the argument batch_size in the function that makes the "
    "data, or fix batch_size in data_kwargs"
)
_BY_MODEL = (
    "the model accepts only batches of {} samples. Remove batch_size from its Input, or fix batch_size in data_kwargs"
)
_BY_STEP = (
    "the train step accepts only batches of {} samples. Take the batch size from the data in train_step (ops.shape(x)[0]), "
    "or fix batch_size in data_kwargs"
)
_BATCHES_IN_STEP = 2  # the estimate of the step includes the current and the prefetched batch
_MUCH_SHARE = 0.1  # of a GPU's limit: larger copies of the data get a notice
_PIECE_BYTES = 2**20  # half of the allocator's first region: whole pieces fill each region


def describe(context: TrialContext, loaded: Workload) -> None:
    """Open the data, build the model and trace the train step; send the description, then the estimates of memory."""
    # The order matters. What a pipeline holds on a CPU is read from the peak of the allocator, which counts the model's
    # variables, too. So the training data is opened before there is a model, and its peak is read at once. The validation
    # data is opened after the model, as in other trials, and holds what it adds to the bytes in use.
    named = bind_all(loaded, resolve_reference)
    config = as_written(context.spec.config, resolve_reference("data", loaded.data), named["data"])
    context = replace(context, spec=replace(context.spec, config=config))
    if config.batch_size is not None:
        context = context.sized(context.placement.shared(config.batch_size))
    _begin_peak()
    data = open_training(context, loaded)
    # a tf.data pipeline has made its tensors and buffers by the time of its first batch
    peak = backends.current().peak_bytes
    tensors = _tensors_of(context, data, lambda: (peak(ON_CPU) or 0) - _BATCHES_IN_STEP * bytes_of(data.batch()))
    knobs = data.knobs(named["data"])
    fork_problem = _fork_problem(context, data, knobs)

    if context.spec.gpus:
        backends.current().decide_as_on_gpu()
    model = build_model(context, loaded)
    notice_of_model = _notice_of_model(model, context.placement)
    before = _begin_peak()
    held_out = open_validation(context, loaded)
    tensors += _tensors_of(context, held_out, lambda: _begin_peak() - before)  # that stay
    takes_batch = takes_batch_size(resolve_reference("build_model", loaded.build_model), loaded.model_kwargs)
    one_sizes = dict[str, int | None]()  # of batches, by the reason
    if "batch_size" in knobs:
        one_sizes[_BY_DATA], by_model = _size_of_data(context, loaded, data), _size_of_model(model)
        if takes_batch and by_model == context.spec.config.batch_size:
            by_model = None  # `build_model` makes a model of its own for another size
        one_sizes[_BY_MODEL] = by_model
        if one_sizes[_BY_DATA] is None and by_model is not None and by_model != data.batch_samples:
            data = open_training(context.sized(by_model), loaded)
    bench = Bench(context, loaded, model, data, held_out, FitCall(context, loaded))

    shapes = _scanned(bench)
    batch = fit_options.with_class_weight(data.batch() if shapes is None else shapes.longest, bench.call.options)
    traced = trace(bench, batch, tensors)
    if "batch_size" in knobs and not takes_batch:
        one_sizes[_BY_STEP] = traced.one_size
    reason, one_size = next(((reason, size) for reason, size in one_sizes.items() if size is not None), ("", None))
    by_size = {} if one_size is None else {"batch_size": reason.format(one_size)}
    description = replace(
        _description(bench, named, knobs, traced, batch),
        shapes="" if shapes is None else str(shapes),
        model_takes_batch=takes_batch,
        processes_hang=fork_problem not in (None, data_workers.SAME_NUMBERS),
        fixed_batch_size=one_size,
        untuned={**data.not_taken(resolve_reference("data", loaded.data), loaded.data_kwargs), **by_size},
        notices=tuple(
            filter(None, (fork_problem, *_notices(bench, sum(tensors)), notice_of_model, bench.call.callbacks.notice()))
        ),
    )
    context.send(Message(description=description))
    is_estimated_for_all = "batch_size" in knobs and one_size is None and traced.one_size is None
    sizes = context.spec.batch_sizes if is_estimated_for_all else (data.batch_samples,)
    for message in traced.estimates(sizes, description.sample_count):
        context.send(message)


def _description(
    bench: Bench, named: Mapping[str, dict[str, str]], knobs: dict[str, str], traced: TracedWorkload, batch: Any
) -> Description:
    context, loaded, model, data, call = bench.context, bench.loaded, bench.model, bench.data, bench.call
    backend = backends.current()
    factory = resolve_reference("data", loaded.data)
    of_loader = data.has_processes and not backend.steps_are_async
    alternates = of_loader or (backend.alternates_on_cpu and not context.placement.gpus)
    given_samples = fit_options.samples_of_epoch(call.options, data.batch_samples)
    optimizer = getattr(model, "optimizer", None)
    arrays = data.array_bytes() if bench.held_out is None else data.array_bytes().then(bench.held_out.array_bytes())
    validation_knobs = named.get("validation", {})
    return Description(
        input_kind=data.kind,
        knobs=knobs,
        required=required_of(factory, knobs.values()),
        defaults={**_defaults(data, factory, knobs), **_defaults_of_model(model, call.method)},
        sample_count=data.sample_count() if given_samples is None else given_samples,
        sample_bytes=math.ceil(batch_shapes.sample_bytes(batch)),
        parameter_count=sum(math.prod(v.shape) for v in model.variables),
        parameter_bytes=bytes_of_variables(model.variables),
        optimizer_bytes=traced.optimizer_bytes(),
        accumulates_by=traced.accumulates_by(),
        jit_compile=bool(model.jit_compile),
        batch_parts=data.part_count,
        validation_knobs=validation_knobs,
        validation_required=required_of(resolve_reference("validation", loaded.validation), validation_knobs.values()),
        fingerprint=_model_fingerprint(model, batch),
        optimizer="" if optimizer is None else type(getattr(optimizer, "inner_optimizer", optimizer)).__name__,
        batch_callbacks=call.callbacks.of_batches,
        left_out_callbacks=call.callbacks.left_out,
        mapped_bytes=arrays.mapped,
        tensor_bytes=sum(arrays.tensors),
        conversion_bytes=arrays.conversion,
        takes_turns=data.kind != tfdata.TfData.kind and alternates,
        steps_ahead=0 if context.placement.device else backend.steps_ahead,
        versions={"backend": backend.name, **backend.versions()},
    )


def _size_of_data(context: TrialContext, loaded: Workload, data: FitInput) -> int | None:
    asked = context.spec.config.batch_size
    lengths = [length_of(leaf) for leaf in leaves(data.batch())]
    if asked is None or asked in lengths or data.kind == "arrays":
        return None
    fewer = max(1, min(asked, *lengths) // 2)  # the data set may be smaller than one batch
    try:
        again = [length_of(leaf) for leaf in leaves(open_training(context.sized(fewer), loaded).batch())]
    except Exception:  # data that cannot make such small batches does follow the knob
        return None
    return data.batch_samples if again == lengths and fewer not in lengths else None


def _input_shapes(model: Any) -> list[tuple[int | None, ...]]:
    # none for a model that is not built yet or declares no inputs
    inputs = getattr(model, "inputs", None) if model.built else None
    return [tuple(tensor.shape) for tensor in keras.tree.flatten(inputs or [])]


def _size_of_model(model: Any) -> int | None:
    sizes = {shape[0] for shape in _input_shapes(model)}
    return sizes.pop() if len(sizes) == 1 else None


def _scanned(bench: Bench) -> batch_shapes.BatchShapes | None:
    """Find and save the longest and the shortest batch; return None if the model or the batches have a single shape."""
    context, data, input_shapes = bench.context, bench.data, _input_shapes(bench.model)
    if input_shapes and not any(None in shape[1:] for shape in input_shapes):
        return None
    context.enter(Phase.SCANNING)
    shapes: batch_shapes.BatchShapes | None = call_reported(context.report_error, batch_shapes.scan, data.user_batches())
    if shapes is not None:
        shapes.save(context.folder)
    return shapes


def _tensors_of(context: TrialContext, data: FitInput | None, pipeline_bytes: Callable[[], int]) -> list[int]:
    """Return the bytes of each tensor that the data holds on the training device in addition to its batches."""
    # `fit` copies arrays to tensors on this device. The tensors and buffers of a tf.data pipeline are in host memory, so
    # they count only on a CPU. Its allocator counts their total; this is returned as pieces and a remainder.
    if data is None or data.kind != tfdata.TfData.kind:
        return [] if data is None else list(data.array_bytes().tensors)
    pieces, rest = divmod(max(0, pipeline_bytes()), _PIECE_BYTES) if context.placement.device is None else (0, 0)
    return [_PIECE_BYTES] * pieces + [rest] * (rest > 0)


def _begin_peak() -> int:
    """Reset the peak of the CPU's allocator; return the bytes in use, or 0 if the allocator does not count them."""
    backend = backends.current()
    if backend.peak_bytes(ON_CPU) is None:
        return 0
    backend.reset_peak(ON_CPU)
    return backend.peak_bytes(ON_CPU) or 0


def _notices(bench: Bench, copied_bytes: int) -> Iterator[str]:
    method, backend = bench.call.method.name, backends.current()
    device, limit_bytes = bench.context.placement.device, bench.context.spec.limits.device_bytes
    yield from () if device is None else backend.problems(device, limit_bytes)
    if method == fit_options.PREDICT:
        yield (
            "predict keeps the outputs of all samples in memory until it ends, which trials do not count. Leave room for "
            "them, or predict a part of the data at a time"
        )
    # other backends copy only batches
    if device is not None and backend.uses_tfdata and limit_bytes and copied_bytes > _MUCH_SHARE * limit_bytes:
        yield (
            f"{method} copies the arrays to the GPU ({format_bytes(copied_bytes)} of {format_bytes(limit_bytes)}), which "
            "leaves less memory for batches. A keras.utils.PyDataset or a tf.data.Dataset keeps the arrays in host memory"
        )
    yield from tfdata.cache_notices()


def _notice_of_model(model: Any, placement: Placement) -> str:  # empty if there is nothing to say
    (name, count), needed = distribution_of(model) or ("", 1), backends.current().distribution
    if placement.count == count == 1:
        return name and f"the model is distributed by {name}, but on one device: to tune for two, set device: 2x gpu"
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


def _defaults(data: FitInput, factory: Any, knobs: Mapping[str, str]) -> dict[str, int]:
    own = {knob: name for knob, name in knobs.items() if knob not in data.fit_knobs}
    applied = {knob: value for knob, value in data.applied.values().items() if knob in own or data.has_processes}
    in_signature = defaults_of(factory, own, autotunes=data.autotunes)
    return {**applied, **in_signature, **({"use_multiprocessing": True} if data.has_processes else {})}


def _defaults_of_model(model: Any, method: KerasCall) -> dict[str, int]:
    # Keras's torch backend has none (Keras 3.15); a function of the user's own may ignore it, that of validation too
    functions = {method.function, "test_function"} if method.trains else {method.function}
    ignores = keras.backend.backend() == "torch" or any(is_own(model, f"make_{function}") for function in functions)
    return {} if ignores else {STEPS_PER_EXECUTION: model.steps_per_execution}


def _fork_problem(context: TrialContext, data: FitInput, knobs: Mapping[str, str]) -> str | None:
    if "use_multiprocessing" not in knobs and not (data.kind == TorchLoader.kind and "workers" in knobs):  # grain spawns
        return None
    context.enter(Phase.FORKING)
    backend = backends.current()
    if context.placement.gpus and not data.has_processes and backend.fork_problem_on_gpu:  # applies to Keras's own pool
        return backend.fork_problem_on_gpu
    backend.start()  # its threads are there in training, too
    problem = data_workers.problem_of(lambda: next(data.user_batches()))
    return None if data.has_processes and problem == data_workers.SAME_NUMBERS else problem  # torch seeds each worker


def _model_fingerprint(model: Any, batch: Any) -> str:
    """Return what tells models apart that the same source code builds: by a file or a variable that it reads."""
    compiled = (getattr(model, name, None) for name in ("optimizer", "loss"))
    parts = [type(part).__qualname__ for part in (*model.layers, *compiled)]
    shapes = [(tuple(v.shape), str(v.dtype)) for v in model.variables]
    form = [(tuple(array.shape[1:]), array.dtype.name) for array in leaves(batch)]
    return hashlib.sha256(repr((parts, shapes, form)).encode()).hexdigest()[:16]
