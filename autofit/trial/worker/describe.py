"""Describe a workload before anything is trained; loads Keras."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from autofit import backends
from autofit.records.states import Phase
from autofit.records.trial import Description, Footprint
from autofit.trial.worker import batch_shapes, fork_safety
from autofit.trial.worker.build import build_model, open_training, resolved
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.keras_versions import keras_of
from autofit.workload import accumulation
from autofit.workload.inputs.batch import leaves
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.knobs import as_written, defaults_of, knobs_of, required_of
from autofit.workload.workload import Workload

_COMPILED_SIZES = 2  # estimated where XLA compiles the step: a compilation takes seconds, and two sizes give a line


def describe(context: TrialContext, loaded: Workload) -> None:
    """Build the model, read the batches and trace the train step; nothing is trained."""
    factory = resolved(loaded.data)
    names = knobs_of(factory, loaded.data_kwargs)
    context = replace(context, spec=replace(context.spec, config=as_written(context.config, factory, names)))
    data = open_training(context, loaded)
    knobs = data.knobs(names)
    fork_problem = _fork_problem(context, data) if "use_multiprocessing" in knobs else None
    model = build_model(context, loaded)
    shapes_may_differ = _takes_any_shape(model)
    if not model.built:
        model(data.batch()[0])
    model.optimizer.build(model.trainable_variables)
    shapes = _scan_shapes(context, data) if shapes_may_differ else None
    batch = data.batch() if shapes is None else shapes.longest
    notices = [fork_problem] if fork_problem is not None else []
    if shapes is not None and shapes.opens_alike and data.kind != "tf.data":
        notices.append(batch_shapes.OPENS_ALIKE)
    footprints, problem = _footprints(context, model, batch)
    validation = resolved(loaded.validation)
    validation_knobs = knobs_of(validation, loaded.validation_kwargs)
    context.send(
        description=(
            Description(
                input_kind=data.kind,
                knobs=knobs,
                required=required_of(factory, knobs.values()),
                defaults=_defaults(data, factory, {knob: name for knob, name in names.items() if knob in knobs}),
                sample_count=data.sample_count(),
                sample_bytes=math.ceil(batch_shapes.sample_bytes(batch)),
                shapes="" if shapes is None else str(shapes),
                parameter_count=sum(math.prod(v.shape) for v in model.variables),
                parameter_bytes=_bytes_of(model.variables),
                optimizer_bytes=_bytes_of(model.optimizer.variables),
                jit_compile=bool(model.jit_compile),
                batch_parts=len(batch),
                keras=keras_of(model).__name__,
                validation_knobs=validation_knobs,
                validation_required=required_of(validation, validation_knobs.values()),
                fingerprint=_model_fingerprint(model, [np.asarray(leaf) for leaf in leaves(batch)]),
                footprints=footprints,
                estimate_problem=problem,
                accumulates_by=accumulation.place_of(model, resolved(loaded.build_model)),
                notices=tuple(notices),
                processes_hang=fork_problem == fork_safety.HANGS,
                versions={"backend": backends.current().name, **backends.current().versions()},
            )
        )
    )


def _defaults(data: FitInput, factory: Any, names: Mapping[str, str]) -> dict[str, int]:
    """The values that the data gives the factory's knobs: those in its signature, or those that arrived in the data."""
    own = {knob: name for knob, name in names.items() if knob not in data.fit_knobs}
    arrived = {knob: value for knob, value in data.applied.values().items() if knob in own}
    return {**arrived, **defaults_of(factory, own, autotunes=data.autotunes)}


def _fork_problem(context: TrialContext, data: FitInput) -> str | None:
    context.enter(Phase.FORKING)
    return fork_safety.problem_of(lambda: next(data.look()))


def _takes_any_shape(model: Any) -> bool:
    """Whether inputs have open dimensions beside the batch's; True for a model that is not built yet."""
    inputs = getattr(model, "inputs", None) if model.built else None
    return not inputs or any(None in tensor.shape[1:] for tensor in keras.tree.flatten(inputs))


def _scan_shapes(context: TrialContext, data: FitInput) -> batch_shapes.BatchShapes | None:
    """Find the longest and the shortest batch and save them for later trials; None if all have the same shape."""
    context.enter(Phase.SCANNING)
    try:
        shapes = batch_shapes.scan(data.look())
    except Exception as error:
        context.report_error(error)
        raise
    if shapes is not None:
        shapes.save(context.folder)
    return shapes


def _footprints(context: TrialContext, model: Any, batch: Any) -> tuple[tuple[Footprint, ...], str | None]:
    """Estimate memory for the batch sizes of the spec; only the reason if the step cannot be traced for them."""
    context.enter(Phase.ESTIMATING)
    sizes = context.spec.batch_sizes
    if model.jit_compile and not context.spec.compile_all:
        sizes = sizes[:_COMPILED_SIZES]
    try:
        estimate = backends.current().estimator(model, batch, context.device, context.spec.limits.device_bytes)
        return tuple(estimate(size) for size in sorted(sizes)), None
    except Exception as error:  # a model for one batch size only is tuned without an estimate
        return (), f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _bytes_of(variables: Any) -> int:
    return sum(math.prod(v.shape) * np.dtype(keras.backend.standardize_dtype(v.dtype)).itemsize for v in variables)


def _model_fingerprint(model: Any, batch: list[Any]) -> str:
    """Hash the architecture, the compile arguments and the form of a batch."""
    try:
        architecture = model.to_json()
    except Exception:  # a custom layer without get_config: hash the layers' classes and shapes
        architecture = repr([(type(layer).__qualname__, [tuple(w.shape) for w in layer.weights]) for layer in model.layers])
    try:
        compiled = repr(model.get_compile_config())
    except Exception:  # a loss without get_config, or a lambda without source
        compiled = repr([type(part).__qualname__ for part in (model.optimizer, model.loss)])
    form = repr([(array.shape[1:], str(array.dtype)) for array in batch])
    weights = repr([(tuple(v.shape), str(v.dtype)) for v in model.variables])
    return hashlib.sha256("\n".join((architecture, compiled, form, weights)).encode()).hexdigest()[:16]
