"""The optimizers of a Keras model; no Keras is loaded."""

from __future__ import annotations

from typing import Any


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer that `compile` was given and those that are attributes of the model, each once."""
    listed = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(value): value for value in listed if hasattr(value, "apply_gradients")}.values())
