"""Objects of Keras (layers, models, losses, metrics, optimizers) that are sent with what is the
user's own in them.
"""
# Keras pickles such an object as the file that `save` would write, in which functions and classes
# stand by name. A trial finds a name only if it is registered by then, and of a lambda the file has
# the code without its globals. So the user's functions and classes are sent beside the file, which
# has other names for them, because two may have the same name.

from __future__ import annotations

import gc
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from autofit.errors import UsageError
from autofit.workload.own_modules import is_own_module

_REASON_CHARACTERS = 200  # of an error of Keras, which ends with a whole config


def is_saveable(obj: Any) -> bool:
    """Return whether an object is one of Keras that is pickled as a file."""
    reduce = getattr(type(obj), "__reduce__", None)
    return getattr(reduce, "__module__", "") == "keras.src.saving.keras_saveable"


def identity_of(obj: Any) -> list[Any]:
    """Return what tells an object of Keras from others of its class, the same in every process:
    config, weights, parts.
    """
    file = zipfile.ZipFile(obj.__reduce__()[1][0])
    dated = "metadata.json"  # with the time at which it was saved
    contents = [file.read(name) for name in sorted(file.namelist()) if name != dated]
    return [type(obj).__name__, contents, list(_own_parts(obj))]


def reduced(obj: Any) -> tuple[Any, ...]:
    """Reduce an object of Keras, as `__reduce__` does, to a call of a function in the trial."""
    parts = list(_own_parts(obj))
    names = [part.__name__ for part in parts]
    registered_name = sys.modules["keras"].saving.get_registered_name
    try:
        for number, part in enumerate(parts):
            part.__name__ = f"own_{number}"
        load, arguments = obj.__reduce__()
        objects = {registered_name(part): part for part in parts}
        name = f"{type(obj).__name__} {getattr(obj, 'name', '')!r}"
        return _loaded, (name, objects, load, arguments)
    finally:
        for part, name in zip(parts, names, strict=True):
            part.__name__ = name


def _loaded(
    name: str,
    objects: Mapping[str, Any],
    load: Callable[..., Any],
    arguments: tuple[Any],
) -> Any:
    import keras  # heavy: must stay out of the parent

    try:
        with keras.saving.custom_object_scope(objects):
            return load(*arguments)
    except Exception as error:  # of Keras, about its file
        reason = " ".join(str(error).split())[:_REASON_CHARACTERS]
        raise UsageError(
            f"the {name}, which your functions use, cannot be sent to another process, because "
            "Keras does not load what it "
            f"saves of it ({type(error).__name__}: {reason}). Make it inside the function that "
            "uses it"
        ) from None


def _own_parts(obj: Any) -> Iterator[Any]:
    """Yield the user's functions, and the user's classes of objects, that an object of Keras
    holds.
    """
    pending = [obj]
    seen = {}
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, FunctionType | type):
            if is_own_module(str(part.__module__)):
                yield part
        elif is_saveable(part) or isinstance(part, dict | list | tuple | set):
            pending += [type(part), *gc.get_referents(part)]
