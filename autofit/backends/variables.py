"""Find the optimizers of a Keras model and the size of its variables; used only in a trial's process."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer passed to `compile` and those that are attributes of the model, each once."""
    listed = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(value): value for value in listed if hasattr(value, "apply_gradients")}.values())


def bytes_of(variables: Iterable[Any]) -> int:
    """Return the total size of Keras variables, in bytes."""
    import keras  # heavy: must stay out of the parent
    import numpy as np  # Keras registers bfloat16 with NumPy

    return sum(math.prod(v.shape) * np.dtype(keras.backend.standardize_dtype(v.dtype)).itemsize for v in variables)


def bytes_of_optimizers(model: Any) -> int:
    """Return the total size of the variables of a model's optimizers, in bytes."""
    return bytes_of(variable for optimizer in optimizers_of(model) for variable in optimizer.variables)
