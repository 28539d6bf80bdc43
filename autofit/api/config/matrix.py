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


def paths(axis: str) -> tuple[str, ...]:
    """Return the dotted arguments that an axis sets."""
    return tuple(path.strip() for path in axis.split(","))


def unfold(matrix: Any) -> list[dict[str, Any]]:
    """Return the cells of a matrix in order, each as its values by axis: the last axis varies fastest."""
    if not isinstance(matrix, Mapping) or not matrix:
        raise UsageError("must map arguments to lists of values, such as model_kwargs.width: [8, 16, 32]", key=_KEY)
    for axis, values in matrix.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problem = f"{values!r} is not allowed; write a list of values, such as [8, 16, 32]"
            raise UsageError(problem, key=f"{_KEY}.{axis}")
        if any(values.count(value) > 1 for value in values):
            raise UsageError(f"{values!r} has a duplicate value; remove it", key=f"{_KEY}.{axis}")
    count = math.prod(map(len, matrix.values()))
    if count > _MOST_CELLS:
        raise UsageError(f"has {count:,} cells, but the limit is {_MOST_CELLS:,}; list fewer values", key=_KEY)
    axes = [str(axis) for axis in matrix]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*matrix.values())]


def apply(values: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested arguments with the values of a cell."""
    changed = dict(arguments)
    for axis, value in values.items():
        for path in paths(axis):
            names, inner = path.split("."), changed
            for name, below in itertools.pairwise(names):
                part = inner.get(name) or {}
                if not isinstance(part, Mapping):
                    problem = f"{name} is {part!r}, so {below} cannot be set in it; make {name} a mapping"
                    raise UsageError(problem, key=f"{_KEY}.{axis}")
                inner[name] = dict(part)
                inner = inner[name]
            inner[names[-1]] = value
    return changed
