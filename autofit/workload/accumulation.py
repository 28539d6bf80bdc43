"""Gradient accumulation: the number of batches per update of the weights, and where to set it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from autofit.errors import UsageError

# the argument of Keras's optimizers; a `build_model` with a parameter of this name receives it
NAME = "gradient_accumulation_steps"
# the value that `place_of` returns if `build_model` has a parameter for the accumulation steps
BUILD_MODEL = "build_model"


def steps_of(batch_size: int | None, effective_batch_size: int | None) -> int:
    """Return the number of batches per update of the weights; 1 without accumulation."""
    return (
        max(1, round(effective_batch_size / batch_size))
        if effective_batch_size and batch_size
        else 1
    )


def is_argument_of(function: Callable[..., Any], name: str = NAME) -> bool:
    """Return whether a function has a parameter of this name; by default, that for the accumulation
    steps.
    """
    return name in inspect.signature(function).parameters


def place_of(model: Any, build_model: Callable[..., Any]) -> str:
    """Return where to set the steps: "build_model", "optimizer" or, for a loss scaler,
    "optimizer.inner_optimizer".
    """
    if is_argument_of(build_model):
        return BUILD_MODEL
    return (
        "optimizer.inner_optimizer"
        if hasattr(model.optimizer, "inner_optimizer")
        else "optimizer"
    )


def steps_in(model: Any) -> int:
    """Return the number of batches per update that the user has set in a model's optimizer; 1
    without one.
    """
    optimizer = getattr(model, "optimizer", None)
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), NAME, None) or 1


def accumulate(model: Any, steps: int) -> None:
    """Make the optimizer of a compiled model accumulate gradients over `steps` batches."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    problem = ""
    if not hasattr(optimizer, NAME):
        problem = (
            f"{type(optimizer).__name__} has no {NAME}; use an optimizer of Keras 3"
        )
    elif optimizer.built:
        problem = (
            "build_model returns a model whose optimizer is already built, so autofit cannot "
            "change its accumulation. "
            f"Give build_model a parameter {NAME} and pass it to the optimizer"
        )
    if problem:
        raise UsageError(problem, key="effective_batch_size")
    setattr(optimizer, NAME, steps)
