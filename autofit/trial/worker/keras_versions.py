"""What a trial reads from models, and sets in Keras, in all versions of Keras 3. Loads Keras."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from autofit.errors import UsageError
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.trial.worker.keras_call import KerasCall

_STEP_METHODS = ("train_step", "compute_loss", "compute_metrics")


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
    if any(name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name) for name in _STEP_METHODS):
        return
    with contextlib.suppress(Exception):  # the step creates what is missing, or raises the same error
        model._symbolic_build(data_batch=batch)


def model_defaults(model: Any, method: KerasCall) -> dict[str, int]:
    """Return the model's own `steps_per_execution`; nothing if it cannot be set for it."""
    # Keras's torch backend has none (Keras 3.15); a function of the user's own may ignore it, that of validation too
    names = {f"make_{hook}_function" for hook in (method.hook, *(["test"] if method.trains else []))}
    is_own = any(getattr(type(model), name) is not getattr(keras.Model, name) for name in names)
    return {} if is_own or keras.backend.backend() == "torch" else {STEPS_PER_EXECUTION: model.steps_per_execution}


@dataclass(frozen=True)
class Distribution:
    """How a model is distributed: the name of the class that distributes it, and the number of devices."""

    name: str
    count: int


def distribution_of(model: Any) -> Distribution | None:
    """Return how a model is distributed; None for a model on one device."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow only
    if strategy is not None and strategy is not sys.modules["tensorflow"].distribute.get_strategy():
        return Distribution(type(strategy).__name__, int(strategy.num_replicas_in_sync))
    layout = keras.distribution.distribution()
    return None if layout is None else Distribution(type(layout).__name__, int(layout.device_mesh.devices.size))


@contextlib.contextmanager
def idle(model: Any, call: KerasCall, steps: int) -> Iterator[Any]:
    """Yield a model whose step does nothing: a new one or, if `model` has a `call` of its own, `model` itself."""
    if not call.is_own(model):
        yield idle_model(steps)
        return
    given, had_step = vars(model).get(call.step), call.step in vars(model)
    setattr(model, call.step, getattr(idle_model(), call.step))
    setattr(model, call.function, None)
    try:
        yield model
    finally:
        if had_step:
            setattr(model, call.step, given)
        else:
            delattr(model, call.step)
        setattr(model, call.function, None)


def idle_model(steps: int = 1) -> Any:
    """Make a compiled model whose steps do nothing; a call of its train function runs this number of `steps`."""
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
