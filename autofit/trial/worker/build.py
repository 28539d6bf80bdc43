"""Build the user's model and open the user's data in a trial's process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import Phase
from autofit.trial.wire import Message
from autofit.trial.worker.fit_call import FitCall, is_own
from autofit.trial.worker.job import TrialContext
from autofit.workload import accumulation, fit_options
from autofit.workload.binding import resolve_reference
from autofit.workload.fit_options import VALIDATION_BATCH_SIZE, VALIDATION_SPLIT
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.kinds import open_input
from autofit.workload.inputs.knobs import is_pydataset
from autofit.workload.inputs.tfdata import reserved
from autofit.workload.workload import Workload

BATCH_SIZE = "batch_size"
_STEP_METHODS = ("train_step", "compute_loss", "compute_metrics")


@dataclass(frozen=True)
class Bench:
    """The model and the data of a trial, and how `fit` is called on them; `held_out` is the validation data."""

    context: TrialContext
    model: Any
    data: FitInput
    held_out: FitInput | None
    call: FitCall


def build_model(context: TrialContext, loaded: Workload) -> Any:
    """Build the compiled model, with the requested dtype policy, distribution and gradient accumulation."""
    context.enter(Phase.BUILDING)
    build, kwargs = resolve_reference("build_model", loaded.build_model), dict(loaded.model_kwargs)
    steps = accumulation.steps_of(context.spec.config.batch_size, context.spec.effective_batch_size)
    if takes_batch_size(build, kwargs) and context.spec.config.batch_size is not None:
        kwargs[BATCH_SIZE] = context.spec.config.batch_size
    if steps > 1 and accumulation.is_argument_of(build):
        kwargs[accumulation.NAME] = steps
    if loaded.dtype_policy is not None:
        keras.config.set_dtype_policy(loaded.dtype_policy)
    is_distributed = loaded.distribution is not None and context.placement.count > 1
    with backends.current().distributing(context.placement) if is_distributed else contextlib.nullcontext():
        model = build(**kwargs)
    compiled = "" if loaded.call == fit_options.PREDICT else "compiled "  # predict needs no `compile`
    if not isinstance(model, keras.Model):
        returned = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UsageError(f"build_model returned a {returned}; it must return a {compiled}keras.Model of Keras 3")
    if compiled and not model.compiled:
        raise UsageError("build_model returned a model that is not compiled; call model.compile(...) in build_model")
    if steps > 1 and not accumulation.is_argument_of(build):
        accumulation.accumulate(model, steps)
    if loaded.jit_compile is not None:
        model.jit_compile = loaded.jit_compile
    if context.spec.config.steps_per_execution is not None:
        model.steps_per_execution = context.spec.config.steps_per_execution
    return model


def build_variables(model: Any, batch: Any) -> None:
    """Create the variables of optimizer and metrics before the first step, if the step would create the same ones."""
    # On TensorFlow, a step that creates variables is traced twice, and tracing takes most of the time until the first step
    # runs. Nothing is done on other backends, where `fit` creates the variables first; for a model whose step has the
    # user's own methods, which may use other variables, or none; and for a distributed model, whose strategy creates them.
    if keras.backend.backend() != "tensorflow" or not model.built or distribution_of(model) is not None:
        return
    if not any(is_own(model, method) for method in _STEP_METHODS):
        with contextlib.suppress(Exception):  # the step creates what is missing, or raises the same error
            model._symbolic_build(data_batch=batch)


def distribution_of(model: Any) -> tuple[str, int] | None:
    """Return the name of the class that distributes a model, and the number of devices; None for one that is not."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow only
    if strategy is not None and strategy is not sys.modules["tensorflow"].distribute.get_strategy():
        return type(strategy).__name__, int(strategy.num_replicas_in_sync)
    layout = keras.distribution.distribution()
    return None if layout is None else (type(layout).__name__, int(layout.device_mesh.devices.size))


def takes_batch_size(build_model: Callable[..., Any], model_kwargs: Mapping[str, Any]) -> bool:
    """Return whether `build_model` is given the tried batch size: it has a parameter for it, and the user no value."""
    return BATCH_SIZE not in model_kwargs and accumulation.is_argument_of(build_model, BATCH_SIZE)


def open_data(context: TrialContext, loaded: Workload) -> tuple[FitInput, FitInput | None]:
    """Open the training data with the trial's config, and the validation data, if any, with a batch size of its own."""
    context.enter(Phase.OPENING)
    config, data, report = context.spec.config, resolve_reference("data", loaded.data), context.report_error
    of_validation = replace(config, batch_size=loaded.fit_kwargs.get(VALIDATION_BATCH_SIZE) or config.batch_size)
    opened = open_input(data, loaded.data_kwargs, config, report)
    held_out: FitInput | None = None
    if loaded.call == fit_options.PREDICT and isinstance(opened, Arrays):
        opened = opened.without_targets()
    if share := loaded.fit_kwargs.get(VALIDATION_SPLIT):
        held_out = opened if of_validation == config else open_input(data, loaded.data_kwargs, of_validation, report)
        if not isinstance(opened, Arrays) or not isinstance(held_out, Arrays):
            raise UsageError(
                f"validation_split divides arrays, but the data is a {opened.kind}; pass the validation data as validation",
                key=f"fit_kwargs.{VALIDATION_SPLIT}",
            )
        opened, held_out = opened.split(share)[0], held_out.split(share)[1]
    elif loaded.validation is not None:
        validation = resolve_reference("validation", loaded.validation)
        if is_pydataset(validation):
            of_validation = replace(of_validation, batch_size=None)
        held_out = open_input(validation, loaded.validation_kwargs, of_validation, report)
    if reserved.bytes:  # what the data's caches take in the user's own run, in addition to this trial's
        context.send(Message(reserved_bytes=reserved.bytes))
    return opened, held_out
