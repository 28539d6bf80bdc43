"""Whether the worker processes of a torch DataLoader share a stream, or each reads the whole of
it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

from autofit.workload.own_modules import package_of

_ASKS = "get_worker_info"
# Their code is not the user's, and torch's own names the function without splitting anything.
_SKIPPED = {
    *sys.stdlib_module_names,
    "torch",
    "numpy",
    "keras",
    "tensorflow",
    "jax",
} - {"__main__"}
# A dataset may hold millions of records: only so many entries of a container are looked at.
_MOST_ENTRIES = 100
_MOST_VISITED = 10_000


def is_split(loader: Any) -> bool:
    """Return whether the workers of a loader of an iterable dataset read different parts of it."""
    # The code is read and not run: an answer from the data would need two processes and their first
    # samples, and a stream may be shuffled.
    if loader.worker_init_fn is not None:
        return True
    pending = [loader.dataset]
    seen = dict[int, Any]()
    while pending and len(seen) < _MOST_VISITED:
        value = pending.pop()
        if id(value) in seen:
            continue
        # It is kept, so that no other value gets its id.
        seen[id(value)] = value
        if _splits(value):
            return True
        pending.extend(_parts(value))
    return False


def _splits(value: Any) -> bool:
    if isinstance(value, types.CodeType):
        return _ASKS in value.co_names
    # It may be imported under another name.
    if isinstance(value, types.FunctionType) and value.__name__ == _ASKS:
        return True
    # HuggingFace's streams split themselves; torch applies its sharding in each worker.
    shards = not isinstance(value, type) and callable(
        getattr(type(value), "apply_sharding", None)
    )
    return shards or package_of(type(value)) == "datasets"


def _parts(value: Any) -> Iterator[Any]:
    """Yield what a value is made of: its code, what that names, its attributes and its entries."""
    if isinstance(value, list | tuple | set | frozenset | dict):
        entries = value.values() if isinstance(value, dict) else value
        yield from itertools.islice(entries, _MOST_ENTRIES)
    elif isinstance(value, types.CodeType):
        yield from filter(inspect.iscode, value.co_consts)
    elif isinstance(value, types.FunctionType):
        if package_of(value) not in _SKIPPED:
            yield value.__code__
            yield from _named(value)
            for cell in value.__closure__ or ():
                # A cell may still be empty.
                with contextlib.suppress(ValueError):
                    yield cell.cell_contents
            # of a decorated function
            yield from vars(value).values()
    elif isinstance(value, types.MethodType | functools.partial):
        bound = ("__self__", "__func__", "func", "args", "keywords")
        yield from (getattr(value, name, None) for name in bound)
    elif isinstance(value, types.GeneratorType):
        yield value.gi_code
    elif isinstance(value, staticmethod | classmethod | property):
        yield value.fget if isinstance(value, property) else value.__func__
    elif isinstance(value, type):
        for base in value.__mro__:
            if package_of(base) not in _SKIPPED:
                yield from vars(base).values()
    elif not isinstance(value, types.ModuleType):
        yield type(value)
        yield getattr(value, "__dict__", {})


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield the global values that a function's code names, also as attributes of modules."""
    names = set[str]()
    codes = [function.__code__]
    # which grows
    for code in codes:
        names.update(code.co_names)
        codes.extend(filter(inspect.iscode, code.co_consts))
    named = [
        function.__globals__[name] for name in names if name in function.__globals__
    ]
    yield from named
    for module in named:
        if (
            isinstance(module, types.ModuleType)
            and module.__name__.partition(".")[0] not in _SKIPPED
        ):
            # `getattr` would run the import of a module that is loaded lazily
            yield from (vars(module)[name] for name in names if name in vars(module))
