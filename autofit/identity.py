"""What tells one workload from another: a hash of its sources, arguments and data's form; and the versions it needs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import IO, Any

import cloudpickle

from autofit import sources
from autofit.workload import Reference, Workload, handing_over, is_plain_array

_PLAIN = (str, bytes, int, float, bool, tuple, Path)
_DIGEST_BYTES = 1 << 20  # of each end of an array: enough to tell arrays apart, cheap on large ones


@dataclass(frozen=True)
class Identity:
    """A workload's fingerprint, and the versions of the installed packages that its sources import."""

    fingerprint: str
    versions: dict[str, str]


def identify(workload: Workload) -> Identity:
    """Tell a workload from others: the same one has the same identity in another process and on another day.

    Seen are the sources of the functions and of what they reach, in their own files and in those that they import
    (`sources`); their closures, defaults and the plain globals that they name; arguments; and of arrays given as data the
    form, shape and type, since their values change neither speed nor memory. Not seen are files that the functions read.

    Raises:
        UsageError: something in the workload cannot be pickled.
    """
    found = _Digest()
    with handing_over():
        for part in (workload.build_model, workload.data, workload.validation):
            found.add(part)
        for kwargs in (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs):
            found.add_value(dict(kwargs))
    found.add_value((workload.dtype_policy, workload.jit_compile))
    return found.identity()


def version_of(package: str) -> str | None:
    """The version of an installed package, by the name under which it is imported; None where it is not known."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    found = _distributions().get(package)
    return importlib.metadata.version(found[0]) if found else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by the names under which they are imported, as `pillow` by `PIL`; reads the records of all of them."""
    return importlib.metadata.packages_distributions()


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._walk = sources.Walk()
        self.packages: set[str] = set()
        self._seen: set[int] = set()

    def add(self, part: Any) -> None:
        """The model's function, or the data."""
        if isinstance(part, Reference):
            path = part.path or sources.file_of(part.module)
            self._text(part.name if part.path else part.text)
            if path is not None:
                self._walk.enter(path, part.name)
            else:
                self.packages.add(part.module.partition(".")[0])
        elif isinstance(part, functools.partial):
            self.add(part.func)
            self.add_value((part.args, part.keywords))
        elif callable(part):
            self._function(part)
        else:
            self.hash.update(_pickled(part, _FormPickler))
            if type(part).__module__ != "builtins":
                self._function(type(part))

    def add_value(self, value: Any) -> None:
        """An argument."""
        self._text(_canonical(value))

    def _function(self, function: Any) -> None:
        """A function, class or callable object; functions of a notebook take with them those that they call."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self._text(name)
        file = _file(function)
        if file is not None:
            for reached in _names(name, function):
                self._walk.enter(file, reached, imported=function.__module__ != "__main__")
        try:
            self._text(sources.of_text(inspect.getsource(function)))
        except (OSError, TypeError):
            if file is None:
                self.add_value(function)
        code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        named = {name: scope[name] for name in (code.co_names if code else ()) if name in scope}
        self.add_value(
            {
                "closure": [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()],
                "defaults": getattr(function, "__defaults__", None),
                "self": getattr(function, "__self__", None),
                "globals": {name: value for name, value in named.items() if isinstance(value, _PLAIN)},
            }
        )
        if file is None:
            for value in named.values():
                if isinstance(value, FunctionType | type) and value.__module__ == function.__module__:
                    self._function(value)

    def identity(self) -> Identity:
        """Of all that was added."""
        reached = self._walk.reached()
        self._text(reached.text)
        packages = sorted(self.packages | reached.packages)
        versions = {name: version for name in packages if (version := version_of(name))}
        return Identity(self.hash.hexdigest()[:16], versions)

    def _text(self, text: str) -> None:
        self.hash.update(text.encode() + b"\0")


def _file(function: Any) -> Path | None:
    """The file that defines a function; None where there is none, as in a notebook."""
    try:
        path = Path(inspect.getsourcefile(function) or "")
    except (OSError, TypeError):
        return None
    return path if path.is_file() else None


def _names(name: str, function: Any) -> tuple[str, ...]:
    """The names at the top of its file from which all that a function may reach can be followed."""
    outermost = name.partition(".")[0]
    code = getattr(function, "__code__", None)
    return (outermost,) if outermost.isidentifier() else tuple(code.co_names) if code else ()


class _ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles for hashing only: an array is its shape, type and both ends."""

    def persistent_id(self, obj: Any) -> bytes | None:
        if not is_plain_array(obj):
            return None
        flat = obj.reshape(-1) if obj.flags.c_contiguous else obj.ravel()
        count = max(1, _DIGEST_BYTES // max(1, obj.itemsize))
        ends = flat[:count].tobytes() + flat[-count:].tobytes()
        return f"{obj.shape}{obj.dtype}".encode() + hashlib.sha256(ends).digest()


class _FormPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles for hashing only: an array is its shape and type."""

    def persistent_id(self, obj: Any) -> bytes | None:
        return f"{obj.shape}{obj.dtype}".encode() if is_plain_array(obj) else None


def _canonical(value: Any) -> str:
    """A value as text: mappings by sorted keys, plain values as they are written, others by their pickle."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_canonical(k)}:{_canonical(v)}" for k, v in value.items())) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{','.join(map(_canonical, value))}]"
    if value is None or isinstance(value, str | int | float | bytes):
        return repr(value)
    return hashlib.sha256(_pickled(value, _ValuePickler)).hexdigest()


def _pickled(value: Any, pickler: Callable[[IO[bytes]], Any]) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer).dump(value)
    return buffer.getvalue()
