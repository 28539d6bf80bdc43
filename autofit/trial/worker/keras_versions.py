"""The differences between Keras 3 and tf_keras (Keras 2), for a trial's process."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from autofit.errors import UsageError

_FLAVOURS = ("keras", "tf_keras")


def keras_of(model: Any) -> Any:
    """The module, `keras` or `tf_keras`, that a model's class derives from; None if it is not a model."""
    for base in type(model).__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "Model" and root in _FLAVOURS:
            return importlib.import_module(root)
    return None


def set_dtype_policy(policy: str) -> None:
    """Set the default policy of new layers, in Keras 3 and, if the user's code has loaded it, in tf_keras.

    Raises:
        UsageError: there is no such policy.
    """
    import keras  # heavy: must stay out of the parent

    try:
        keras.config.set_dtype_policy(policy)
        if "tf_keras" in sys.modules:
            sys.modules["tf_keras"].mixed_precision.set_global_policy(policy)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{policy!r} is no dtype policy of Keras: {str(error).splitlines()[0]}", key="dtype_policy"
        ) from None


def is_compiled(model: Any) -> bool:
    """Whether `compile` was called."""
    return bool(model.compiled if hasattr(model, "compiled") else model._is_compiled)


def build_optimizer(model: Any) -> None:
    """Build the optimizer's variables before the first step, where that step is Keras 3's own and would build them so.

    A step that makes variables is traced twice. A step of the user's may not use this optimizer; the strategy of a model
    that is distributed builds it.
    """
    flavour, optimizer = keras_of(model), model.optimizer
    if flavour.__name__ != "keras" or not model.built or optimizer is None or distribution_of(model) is not None:
        return
    is_own = "train_step" not in vars(model) and type(model).train_step is flavour.Model.train_step
    if is_own and not optimizer.built:
        optimizer.build(model.trainable_variables)


def steps_per_execution(model: Any) -> int:
    """The number of batches that one call of the train function trains on."""
    return int(model.steps_per_execution if hasattr(model, "steps_per_execution") else model._steps_per_execution)


def distribution_of(model: Any) -> str | None:
    """The name of what distributes the model over several devices; None for a model of one device."""
    import keras  # heavy: must stay out of the parent
    import tensorflow as tf  # heavy: must stay out of the parent

    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy is not tf.distribute.get_strategy():
        return type(strategy).__name__
    layout = keras.distribution.distribution()
    return None if layout is None else type(layout).__name__


def idle_model(flavour: Any) -> Any:
    """Make a compiled model whose train step does nothing."""
    import tensorflow as tf  # heavy: must stay out of the parent

    class Idle(flavour.Model):  # type: ignore[misc]  # Keras ships no types
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"loss": tf.zeros(())}

    idle = Idle()
    idle.compile(jit_compile=False)
    return idle
