"""The matrix of a sweep: what is varied, unfolded into cells. Pure.

matrix:
model_kwargs.width: [8, 16, 32]          an argument of `tune`, dotted, and its values
model_kwargs.pixels, data_kwargs.pixels: [64, 128]      several that take the same value
exclude:
- {model_kwargs.width: 32, model_kwargs.pixels, data_kwargs.pixels: 128}      cells with all of these are left out
include:
- {model_kwargs.width: 64, device_memory: 8GiB}       a further cell; what it does not name is as in the file
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

INCLUDE, _EXCLUDE = "include", "exclude"
_MOST_CELLS = 10_000

Values = dict[str, Any]
"""The values of a cell, by axis."""


class MatrixError(ValueError):
    """A matrix says something that is not allowed; `keys` lead to it."""

    def __init__(self, keys: tuple[int | str, ...], problem: str) -> None:
        self.keys = keys
        super().__init__(problem)


def paths(axis: str) -> tuple[str, ...]:
    """The dotted arguments that an axis sets."""
    return tuple(path.strip() for path in axis.split(","))


def unfold(matrix: Any) -> list[Values]:
    """The cells of a matrix, in its order: the last axis varies fastest, what is included comes last.

    Raises:
        MatrixError: it is no mapping of axes to lists of values, or gives no cell.
    """
    if not isinstance(matrix, Mapping):
        raise MatrixError((), "must name what is varied, as model_kwargs.width: [8, 16, 32]")
    axes = {str(axis): values for axis, values in matrix.items() if axis not in (INCLUDE, _EXCLUDE)}
    for axis, values in axes.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise MatrixError((axis,), f"{values!r} is not allowed; write a list of values, as [8, 16, 32]")
        if any(values.count(value) > 1 for value in values):
            raise MatrixError((axis,), f"{values!r} has a value twice")
    count = math.prod(len(values) for values in axes.values())
    if count > _MOST_CELLS:
        raise MatrixError((), f"gives {count:,} cells, each a tune of some minutes; {_MOST_CELLS:,} are the most")
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    for number, named in enumerate(_list(matrix, _EXCLUDE)):
        kept = [cell for cell in cells if any(axis not in cell or cell[axis] != value for axis, value in named.items())]
        if len(kept) == len(cells):
            raise MatrixError((_EXCLUDE, number), f"no cell has {_told(named)}; allowed here: {', '.join(axes)}")
        cells = kept
    for number, named in enumerate(_list(matrix, INCLUDE)):
        if dict(named) in cells:
            raise MatrixError((INCLUDE, number), f"the cell {_told(named)} is there already")
        cells.append(dict(named))
    if not cells:
        raise MatrixError((), "gives no cell; name an axis, as model_kwargs.width: [8, 16, 32]")
    return cells


def apply(values: Values, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a file tells, with the values of a cell in it.

    Raises:
        MatrixError: an axis leads through something that is no mapping.
    """
    changed = dict(told)
    for axis, value in values.items():
        for path in paths(axis):
            changed = _with(changed, path.split("."), value, axis)
    return changed


def _with(told: Mapping[str, Any], keys: Sequence[str], value: Any, axis: str) -> dict[str, Any]:
    """A copy of nested mappings with a value of an axis set in it."""
    first, *rest = keys
    if not rest:
        return {**told, first: value}
    inner = told.get(first) or {}
    if not isinstance(inner, Mapping):
        raise MatrixError((axis,), f"{first} is {inner!r} here, which has no {rest[0]}")
    return {**told, first: _with(inner, rest, value, axis)}


def _list(matrix: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = matrix.get(key, [])
    if not isinstance(found, list) or not all(isinstance(named, Mapping) and named for named in found):
        raise MatrixError((key,), "must be a list of cells, as - {model_kwargs.width: 8}")
    axes = [str(axis) for axis in matrix if axis not in (INCLUDE, _EXCLUDE)]
    for number, named in enumerate(found):
        for axis in named if key == _EXCLUDE else ():
            if axis not in axes:
                near = difflib.get_close_matches(str(axis), axes, 1)
                hint = f"; did you mean {near[0]}?" if near else "."
                raise MatrixError((key, number), f"{axis} is no axis{hint} Allowed here: {', '.join(axes)}")
    return found


def _told(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} = {value!r}" for axis, value in named.items())
