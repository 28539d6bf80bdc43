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

from autofit.errors import UsageError

_KEY, _MOST_CELLS = "matrix", 10_000
Values = dict[str, Any]  # the values of a cell, by axis


def paths(axis: str) -> tuple[str, ...]:
    """Return the dotted arguments that an axis sets."""
    return tuple(path.strip() for path in axis.split(","))


def unfold(matrix: Any) -> list[Values]:
    """Return the cells of a matrix in order: the last axis varies fastest."""
    if not isinstance(matrix, Mapping) or not matrix:
        raise UsageError("must map arguments to lists of values, such as model_kwargs.width: [8, 16, 32]", key=_KEY)
    axes = {str(axis): values for axis, values in matrix.items()}
    for axis, values in axes.items():
        problem = ""
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problem = "is not allowed; write a list of values, such as [8, 16, 32]"
        elif any(values.count(value) > 1 for value in values):
            problem = "has a duplicate value; remove it"
        if problem:
            raise UsageError(f"{values!r} {problem}", key=f"{_KEY}.{axis}")
    count = math.prod(len(values) for values in axes.values())
    if count > _MOST_CELLS:
        raise UsageError(f"has {count:,} cells, but the limit is {_MOST_CELLS:,}; list fewer values", key=_KEY)
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
        problem = f"{first} is {inner!r}, so {rest[0]} cannot be set in it; make {first} a mapping"
        raise UsageError(problem, key=f"{_KEY}.{axis}")
    return {**arguments, first: _with(inner, rest, value, axis)}
