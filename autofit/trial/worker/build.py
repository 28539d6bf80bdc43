"""The user's model and data in a trial's process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autofit.errors import UsageError
from autofit.trial.worker.job import BUILDING, TrialContext
from autofit.trial.worker.keras_versions import is_compiled, keras_of, set_dtype_policy
from autofit.workload import accumulation
from autofit.workload.inputs.open import open_input
from autofit.workload.inputs.protocol import FitInput
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def build_model(job: TrialContext, loaded: Workload) -> Any:
    """The compiled model, under the dtype policy asked for, its optimizer told to accumulate where that is wanted.

    Raises:
        UsageError: it is no compiled model, or cannot accumulate; or there is no such policy.
    """
    job.enter(BUILDING)
    build, kwargs = resolved(loaded.build_model), dict(loaded.model_kwargs)
    steps = accumulation.steps_of(job.config.batch_size, job.spec["effective_batch_size"])
    if steps > 1 and accumulation.is_argument_of(build):
        kwargs[accumulation.NAME] = steps
    if loaded.dtype_policy is not None:
        set_dtype_policy(loaded.dtype_policy)
    model = build(**kwargs)
    if keras_of(model) is None:
        raise UsageError(f"build_model returned a {type(model).__name__}; it must return a compiled keras.Model")
    if not is_compiled(model):
        raise UsageError("build_model returned a model that is not compiled; call model.compile(...) in it")
    if steps > 1 and not accumulation.is_argument_of(build):
        accumulation.accumulate(model, steps)
    if loaded.jit_compile is not None:
        model.jit_compile = loaded.jit_compile
    return model


def open_validation(job: TrialContext, loaded: Workload) -> FitInput:
    """The validation data under the config that is tried, or in batches of its own size."""
    config = replace(job.config, batch_size=job.spec["validation_batch_size"] or job.config.batch_size)
    return open_input(resolved(loaded.validation), loaded.validation_kwargs, config, job.report_error)


def open_training(job: TrialContext, loaded: Workload) -> FitInput:
    """The training data under the config that is tried."""
    job.enter("opening the data")
    return open_input(resolved(loaded.data), loaded.data_kwargs, job.config, job.report_error)


def resolved(part: Any) -> Any:
    """What a reference names; anything else is itself."""
    return part.resolve() if isinstance(part, Reference) else part
