"""The matrix of a sweep: the values to vary, expanded into cells.

In a file:

    matrix:
      model_kwargs.width: [8, 16, 32]         # a dotted argument of `tune` and its values
      model_kwargs.pixels, data_kwargs.pixels: [64, 128]      # several arguments that take the same value
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_CELLS = 10_000
Values = dict[str, Any]  # the values of a cell, by axis


class MatrixError(ValueError):
    """A matrix contains an error; `keys` is the path to it."""

    def __init__(self, keys: tuple[int | str, ...], problem: str) -> None:
        self.keys = keys
        super().__init__(problem)


def paths(axis: str) -> tuple[str, ...]:
    """Return the dotted arguments that an axis sets."""
    return tuple(path.strip() for path in axis.split(","))


def unfold(matrix: Any) -> list[Values]:
    """Return the cells of a matrix in order: the last axis varies fastest."""
    if not isinstance(matrix, Mapping):
        raise MatrixError((), "must map arguments to lists of values, such as model_kwargs.width: [8, 16, 32]")
    axes = {str(axis): values for axis, values in matrix.items()}
    for axis, values in axes.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise MatrixError((axis,), f"{values!r} is not allowed; write a list of values, such as [8, 16, 32]")
        if any(values.count(value) > 1 for value in values):
            raise MatrixError((axis,), f"{values!r} has a duplicate value; remove it")
    count = math.prod(len(values) for values in axes.values())
    if count > _MOST_CELLS:
        raise MatrixError((), f"has {count:,} cells, but the limit is {_MOST_CELLS:,}; list fewer values")
    if not axes:
        raise MatrixError((), "has no cells; name an axis, such as model_kwargs.width: [8, 16, 32]")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def apply(values: Values, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested arguments with the values of a cell."""
    changed = dict(arguments)
    for axis, value in values.items():
        for path in paths(axis):
            changed = _with(changed, path.split("."), value, axis)
    return changed


def _with(arguments: Mapping[str, Any], keys: Sequence[str], value: Any, axis: str) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**arguments, first: value}
    inner = arguments.get(first) or {}
    if not isinstance(inner, Mapping):
        raise MatrixError((axis,), f"{first} is {inner!r}, so {rest[0]} cannot be set in it; make {first} a mapping")
    return {**arguments, first: _with(inner, rest, value, axis)}
