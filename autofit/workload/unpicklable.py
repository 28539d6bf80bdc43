"""The part of a value that cannot be pickled, found and named, with what to do about it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle

from autofit.workload.own_modules import attributes_in, members_of

_KWARGS = {
    "build_model": "model_kwargs",
    "data": "data_kwargs",
    "validation": "validation_kwargs",
}


class Part(NamedTuple):
    """A part of a value: as an expression, with what that expression is used in, as ` of
    build_model`.
    """

    value: Any
    name: str = ""
    of: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.of} ({type(self.value).__name__})"


def find(part: Part, above: Sequence[Part] = ()) -> list[Part]:
    """Return the way from a part to the innermost one that cannot be pickled; empty if all can."""
    with contextlib.suppress(Exception):
        cloudpickle.Pickler(SimpleNamespace(write=len)).dump(part.value)
        return []
    above = [*above, part]
    inner = [
        each
        for each in _parts(part)
        if all(each.value is not one.value for one in above)
    ]
    # an object before a function that uses it
    for each in sorted(inner, key=lambda each: callable(each.value)):
        if way := find(each, above):
            return [part, *way]
    return [part]


def remedy(way: Sequence[Part]) -> str:
    """Say what to do about the last part of a way through the arguments of a tune."""
    kwargs = next((_KWARGS[part.name] for part in way if part.name in _KWARGS), None)
    for function, variable in itertools.pairwise(way):
        if kwargs and (values := _values_read(function.value, variable)):
            read = ", ".join(f"{name!r}: {variable.name}.{name}" for name in values)
            return f"Pass the values that {function.name} reads: {kwargs}={{{read}}}"
    values_of = (
        f", or pass the values that these need: {kwargs}={{...}}" if kwargs else ""
    )
    return f"Create such objects, and open files, inside the functions that use them{values_of}"


def _values_read(function: Any, variable: Part) -> list[str]:
    """Return the attributes of a variable that a function reads if all are values, as those of
    parsed flags are.
    """
    if not isinstance(function, FunctionType):
        return []
    names = sorted(attributes_in(function.__code__, variable.name))
    with contextlib.suppress(
        Exception
    ):  # of an attribute that the user's code computes
        values = [getattr(variable.value, name) for name in names]
        if not any(callable(value) or find(Part(value)) for value in values):
            # a parameter, such as the batch size, stays one that the tune gives
            return [
                name
                for name in names
                if name not in inspect.signature(function).parameters
            ]
    return []


def _parts(part: Part) -> Iterator[Part]:
    """Yield what is pickled of a part."""
    value, name, of = part
    outer = f" of {name}{of}" if name else ""
    if isinstance(value, dict | list | tuple) and name:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (Part(each, f"{name}[{key!r}]", of) for key, each in items)
    elif named := _variables(value):
        yield from (Part(each, key, outer) for key, each in named.items())
    else:
        yield from (
            Part(each, f"{name}.{key}", of) for key, each in _attributes(value).items()
        )
        yield Part(type(value), type(value).__name__, outer)


def _variables(value: Any) -> Mapping[str, Any]:
    """Return what a function uses, by name; of a mapping, which has the arguments of a tune, the
    items.
    """
    if isinstance(value, FunctionType):
        with contextlib.suppress(ValueError):  # of a variable without a value
            used = inspect.getclosurevars(value)
            parameters = inspect.signature(value).parameters.values()
            defaults = {each.name: each.default for each in parameters}
            return {**defaults, **used.globals, **used.nonlocals}
    if isinstance(value, MethodType):
        return {"self": value.__self__, value.__name__: value.__func__}
    if isinstance(value, functools.partial):
        called = getattr(value.func, "__name__", "func")
        return {"args": value.args, **value.keywords, called: value.func}
    return value if isinstance(value, dict) else {}


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes that are pickled of an object or a class: an object may leave some
    out.
    """
    if isinstance(value, type):
        return members_of(value)
    with contextlib.suppress(Exception):  # it has none, or cannot be pickled at all
        state = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2]
        # two mappings, or None, if the class has slots
        states = state if isinstance(state, tuple) else (state,)
        return {key: member for each in states for key, member in (each or {}).items()}
    return {}
