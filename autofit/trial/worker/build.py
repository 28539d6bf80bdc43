"""Build the user's model; loads Keras."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import keras

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.trial.worker.job import TrialContext
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.workload import Workload


def build_model(context: TrialContext, loaded: Workload) -> Any:
    """Build the compiled model with the precision, devices and accumulation that were asked for."""
    context.enter(Phase.BUILDING)
    spec = context.spec
    config = spec.config
    build = resolve_reference("build_model", loaded.build_model)
    kwargs = dict(loaded.model_kwargs)
    if takes_batch_size(build, kwargs) and config.batch_size is not None:
        kwargs["batch_size"] = config.batch_size
    steps = accumulation.steps_of(config.batch_size, spec.effective_batch_size)
    build_accumulates = steps > 1 and accumulation.is_argument_of(build)
    if build_accumulates:
        kwargs[accumulation.NAME] = steps
    if loaded.dtype_policy is not None:
        keras.config.set_dtype_policy(loaded.dtype_policy)
    devices: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if loaded.distribution is not None and context.placement.count > 1:
        devices = backends.current().distributing(context.placement)
    with devices:
        model = build(**kwargs)
    # predict needs no `compile`
    _require_model(model, is_compiled=loaded.call != fit_options.PREDICT)
    if steps > 1 and not build_accumulates:
        accumulation.accumulate(model, steps)
    compiles = loaded.jit_compile if spec.jit_compile is None else spec.jit_compile
    if compiles is not None:
        model.jit_compile = compiles
    if config.steps_per_execution is not None:
        model.steps_per_execution = config.steps_per_execution
    return model


def _require_model(model: Any, *, is_compiled: bool) -> None:
    if not isinstance(model, keras.Model):
        returned = f"{type(model).__module__}.{type(model).__qualname__}"
        needed = "compiled keras.Model" if is_compiled else "keras.Model"
        raise UsageError(
            f"build_model returned a {returned}; it must return a {needed} of Keras 3"
        )
    if is_compiled and not model.compiled:
        raise UsageError(
            "build_model returned a model that is not compiled; call model.compile(...) in "
            "build_model"
        )


def build_variables(model: Any, batch: Any) -> None:
    """Create the variables that the first step would create."""
    # A step that creates variables is traced twice, and tracing takes most of the time until the
    # first step runs. Nothing is done for a model whose step has the user's own methods, which may
    # use other variables, or none; and for a distributed model, whose strategy creates them.
    backend = backends.current()
    if not backend.creates_variables_in_step or not model.built:
        return
    if backend.distribution_of(model) is not None:
        return
    methods = ("train_step", "compute_loss", "compute_metrics")
    if any(is_own(model, method) for method in methods):
        return
    # the step creates what is missing, or raises the same error
    with contextlib.suppress(Exception):
        model._symbolic_build(data_batch=batch)


def is_own(model: Any, method: str) -> bool:
    """Return whether a method is not Keras's, as `fit` of keras-hub, which preprocesses."""
    if method in vars(model):
        return True
    return getattr(type(model), method) is not getattr(keras.Model, method)


def takes_batch_size(
    build_model: Callable[..., Any], model_kwargs: Mapping[str, Any]
) -> bool:
    """Return whether `build_model` has a parameter for the batch size, and the user no value."""
    if "batch_size" in model_kwargs:
        return False
    return accumulation.is_argument_of(build_model, "batch_size")
