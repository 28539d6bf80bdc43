"""What is known of a workload before anything is trained (this module loads Keras)."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import keras
import numpy as np

from autofit import backends
from autofit.records.trial import Description, Footprint, Phase
from autofit.trial.worker import batch_shapes, fork_safety
from autofit.trial.worker.build import build_model, open_training, resolved
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.keras_versions import keras_of
from autofit.workload import accumulation
from autofit.workload.inputs.batch import leaves
from autofit.workload.inputs.knobs import knobs_of, required_of
from autofit.workload.inputs.protocol import FitInput
from autofit.workload.workload import Workload


def describe(context: TrialContext, loaded: Workload) -> None:
    """Build the model and one batch, trace the step, look at the batches; nothing is trained."""
    data = open_training(context, loaded)
    factory = resolved(loaded.data)
    knobs = data.knobs(knobs_of(factory, loaded.data_kwargs))
    trouble = _trouble_with_processes(context, data) if "use_multiprocessing" in knobs else None
    model = build_model(context, loaded)
    may_differ = _takes_any_shape(model)
    if not model.built:
        model(data.batch()[0])
    model.optimizer.build(model.trainable_variables)
    found = _lengths(context, data) if may_differ else None
    batch = data.batch() if found is None else found.longest
    notices = [trouble] if trouble is not None else []
    if found is not None and found.opens_alike and data.kind != "tf.data":
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
                sample_count=data.sample_count(),
                sample_bytes=math.ceil(batch_shapes.sample_bytes(batch)),
                shapes="" if found is None else str(found),
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
                processes_hang=trouble == fork_safety.HANGS,
                versions={"backend": backends.current().name, **backends.current().versions()},
            )
        )
    )


def _trouble_with_processes(context: TrialContext, data: FitInput) -> str | None:
    context.enter(Phase.FORKING)
    return fork_safety.problem_of(lambda: next(data.look()))


def _takes_any_shape(model: Any) -> bool:
    """Whether its inputs have other dimensions than the batch's that are open; so has a model that is not built yet."""
    inputs = getattr(model, "inputs", None) if model.built else None
    return not inputs or any(None in tensor.shape[1:] for tensor in keras.tree.flatten(inputs))


def _lengths(context: TrialContext, data: FitInput) -> batch_shapes.BatchShapes | None:
    """The longest and the shortest batch, kept for the trials to come; None where all have one shape."""
    context.enter(Phase.SCANNING)
    try:
        found = batch_shapes.scan(data.look())
    except Exception as error:
        context.report_error(error)
        raise
    if found is not None:
        found.save(context.folder)
    return found


def _footprints(context: TrialContext, model: Any, batch: Any) -> tuple[tuple[Footprint, ...], str | None]:
    """Estimates for the batch sizes that the spec names; none, and why, where the step cannot be traced for other sizes."""
    context.enter(Phase.ESTIMATING)
    sizes, compiled = tuple(context.spec.batch_sizes), bool(model.jit_compile)
    if compiled and not context.spec.compile_all:
        sizes = sizes[:2]
    try:
        estimate = backends.current().estimator(model, batch, context.device, context.spec.limits.device_bytes)
        return tuple(estimate(size) for size in sorted(sizes)), None
    except Exception as error:  # a model that takes one batch size only: it is tuned without an estimate
        return (), f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _bytes_of(variables: Any) -> int:
    return sum(math.prod(v.shape) * np.dtype(keras.backend.standardize_dtype(v.dtype)).itemsize for v in variables)


def _model_fingerprint(model: Any, batch: list[Any]) -> str:
    """A hash of the architecture, how it is compiled, and the form of a batch."""
    try:
        architecture = model.to_json()
    except Exception:  # a custom layer without get_config: what it is made of must do
        architecture = repr([(type(layer).__qualname__, [tuple(w.shape) for w in layer.weights]) for layer in model.layers])
    try:
        compiled = repr(model.get_compile_config())
    except Exception:  # a loss without get_config, or a lambda whose source is out of reach
        compiled = repr([type(part).__qualname__ for part in (model.optimizer, model.loss)])
    form = repr([(a.shape[1:], str(a.dtype)) for a in batch])
    weights = repr([(tuple(v.shape), str(v.dtype)) for v in model.variables])
    return hashlib.sha256("\n".join((architecture, compiled, form, weights)).encode()).hexdigest()[:16]
