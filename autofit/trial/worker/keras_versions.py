"""How Keras runs `fit`, `predict` and `evaluate`, and what a trial reads from models and sets, in all versions of Keras 3.

Loads Keras.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from autofit.errors import UsageError
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.states import Phase

_STEP_METHODS = ("train_step", "compute_loss", "compute_metrics")


@dataclass(frozen=True)
class KerasCall:
    """A method of `keras.Model` that runs a step on each batch."""

    name: str
    function: str  # compiled; it runs the model's `step`
    step: str
    stop: str  # an attribute of the model: the method ends after a step if it is true
    phase: Phase = Phase.INFERENCE

    @property
    def trains(self) -> bool:
        return self.phase is Phase.TRAINING

    def accepted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of `fit` as this method takes them, without those that it does not take."""
        takes = inspect.signature(getattr(keras.Model, self.name)).parameters
        if not self.trains and "steps_per_epoch" in given:
            given = {**given, "steps": given["steps_per_epoch"]}
        return {name: value for name, value in given.items() if name in takes}


CALLS = {
    "fit": KerasCall("fit", "train_function", "train_step", "stop_training", Phase.TRAINING),
    "predict": KerasCall("predict", "predict_function", "predict_step", "stop_predicting"),
    "evaluate": KerasCall("evaluate", "test_function", "test_step", "stop_evaluating"),
}


def is_own(model: Any, method: str) -> bool:
    """Return whether a model's method is not Keras's, as in keras-hub, whose `fit` preprocesses the data."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Keep Keras from loading TensorFlow, which its serialization does on every backend: this takes seconds and 400 MiB."""
    if "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # makes an import fail, as if it were not installed
    try:
        yield
    finally:
        del sys.modules["tensorflow"]


def set_dtype_policy(policy: str) -> None:
    """Set the default policy of new layers."""
    try:
        keras.config.set_dtype_policy(policy)
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{policy!r} is not a dtype policy of Keras: {reason}", key="dtype_policy") from None


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


def model_defaults(model: Any, method: KerasCall) -> dict[str, int]:
    """Return the model's own `steps_per_execution`; nothing if it cannot be set for it."""
    # Keras's torch backend has none (Keras 3.15); a function of the user's own may ignore it, that of validation too
    functions = {method.function, "test_function"} if method.trains else {method.function}
    ignores = keras.backend.backend() == "torch" or any(is_own(model, f"make_{function}") for function in functions)
    return {} if ignores else {STEPS_PER_EXECUTION: model.steps_per_execution}


def distribution_of(model: Any) -> tuple[str, int] | None:
    """Return the name of the class that distributes a model, and the number of devices; None for one that is not."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow only
    if strategy is not None and strategy is not sys.modules["tensorflow"].distribute.get_strategy():
        return type(strategy).__name__, int(strategy.num_replicas_in_sync)
    layout = keras.distribution.distribution()
    return None if layout is None else (type(layout).__name__, int(layout.device_mesh.devices.size))


@contextlib.contextmanager
def idle(model: Any, call: KerasCall, steps: int) -> Iterator[Any]:
    """Yield a model whose step does nothing: a new one or, if `model` has a `call` of its own, `model` itself."""
    if not is_own(model, call.name):
        yield _idle_model(steps)
        return
    own_step = vars(model).get(call.step)
    setattr(model, call.step, getattr(_idle_model(), call.step))
    setattr(model, call.function, None)
    yield model
    # a trial whose run raises an error ends with it, so nothing is restored then
    if own_step is None:
        delattr(model, call.step)
    else:
        setattr(model, call.step, own_step)
    setattr(model, call.function, None)


def _idle_model(steps: int = 1) -> Any:
    loss, outputs = keras.ops.zeros(()), keras.ops.zeros((1,))
    is_stateless = keras.backend.backend() == "jax"

    class Idle(keras.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, *arguments: Any) -> Any:
            return ({"loss": loss}, arguments[0]) if is_stateless else {"loss": loss}

        def test_step(self, *arguments: Any) -> Any:
            return self.train_step(*arguments)

        def predict_step(self, *arguments: Any) -> Any:
            return (outputs, arguments[0][1]) if is_stateless else outputs  # the state is (trainable, non-trainable)

    idle = Idle()
    idle.built = True  # it has nothing to build
    idle.compile(jit_compile=False, steps_per_execution=steps)
    return idle
