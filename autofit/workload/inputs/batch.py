"""Batches as the user's data gives them: nests of arrays, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autofit.errors import UnsupportedInputError, UsageError


def checked(batch: Any, source: str) -> tuple[Any, ...]:
    """A batch as a tuple of (nests of) arrays.

    Args:
        batch: what the user's data gave.
        source: what gave it, for the error.

    Raises:
        UnsupportedInputError: it is not (x, y) or (x, y, sample_weight) of NumPy arrays that hold samples.
    """
    parts: tuple[Any, ...] = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    first = first_leaf(parts)
    if len(parts) > 3 or not isinstance(first, np.ndarray) or first.ndim == 0 or len(first) == 0:
        raise UnsupportedInputError(
            f"{source} gave {len(parts)} parts, the first a {type(first).__name__}; "
            "autofit takes (x, y) or (x, y, sample_weight) of NumPy arrays that hold samples"
        )
    return parts


def first_of(batches: Iterator[Any], source: str) -> Any:
    """The first batch of an iterator.

    Raises:
        UsageError: there is none.
    """
    batch = next(batches, None)
    if batch is None:
        raise UsageError(f"{source} is empty: there is no batch to train on")
    return batch


def first_leaf(nest: Any) -> Any:
    """The first array of a nest of dicts, lists and tuples; anything else is its own leaf."""
    while isinstance(nest, dict | tuple | list) and nest:
        nest = next(iter(nest.values())) if isinstance(nest, dict) else nest[0]
    return nest


def leaves(nest: Any) -> list[Any]:
    """The arrays of a nest."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, tuple | list):
        return [leaf for part in nest for leaf in leaves(part)]
    return [nest]


def mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    """The nest with a function applied to each array."""
    if isinstance(nest, dict):
        return {key: mapped(value, function) for key, value in nest.items()}
    if isinstance(nest, tuple | list):
        return type(nest)([mapped(value, function) for value in nest])
    return function(nest)
