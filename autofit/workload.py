"""The user's model and data, in a form that crosses a process wall.

Callables cross as references (from YAML) or by cloudpickle (from Python, so that functions of `__main__` and of notebooks
work). NumPy arrays, wherever they hang, cross as `.npy` files that each trial maps into memory: written once a tune,
never pickled.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np

from autofit.errors import UsageError

_PICKLE_FILE = "workload.pickle"
_SMALL_ARRAY_BYTES = 64 * 1024  # below this a file of its own costs more than it saves


@dataclass(frozen=True)
class Reference:
    """A function named in a YAML file: `package.module:function`, or `path/to/file.py:function` relative to `folder`."""

    text: str
    folder: str = "."

    @property
    def path(self) -> Path | None:
        """The Python file that is meant, or None where a module is."""
        place = self.text.rpartition(":")[0]
        return (Path(self.folder) / place).resolve() if place.endswith(".py") else None

    @property
    def module(self) -> str:
        """The name under which the function's module is imported."""
        return self.path.stem if self.path else self.text.rpartition(":")[0]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.text.rpartition(":")[2]

    def check(self) -> None:
        """Look for what can be missed without importing anything.

        Raises:
            UsageError: the text is no reference, the file is not there, or the file does not define the name.
        """
        place, _, name = self.text.rpartition(":")
        if not place or not name.isidentifier():
            raise UsageError(f"{self.text!r} is neither path/to/file.py:function nor package.module:function")
        if self.path is None:
            return
        if not self.path.is_file():
            raise UsageError(f"{self.text!r}: there is no file {self.path}")
        try:
            body = ast.parse(self.path.read_bytes()).body
        except SyntaxError as error:
            raise UsageError(f"{self.text!r}: {self.path}:{error.lineno}: {error.msg}") from None
        defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if name not in defined and not _may_define_otherwise(body, name):
            near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
            raise UsageError(f"{self.text!r}: {self.path} does not define {name}{near}")

    def resolve(self) -> Callable[..., Any]:
        """Import the module and return the function.

        Raises:
            UsageError: there is no such module or no such function in it.
            Exception: whatever the module raises while it is imported.
        """
        if self.path is not None:
            if str(self.path.parent) not in sys.path:
                sys.path.insert(0, str(self.path.parent))
        elif importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise UsageError(f"{self.text!r}: there is no module {self.module}; it must be importable from here")
        module = importlib.import_module(self.module)
        if self.path is not None and Path(module.__file__ or "").resolve() != self.path:
            raise UsageError(
                f"{self.text!r}: another module named {self.module} is in use ({module.__file__}); rename the file"
            )
        found = getattr(module, self.name, None)
        if not callable(found):
            raise UsageError(f"{self.text!r}: {self.module} has no function {self.name}")
        return found  # type: ignore[no-any-return]  # callable() narrows it to a callable of unknown return type


def _may_define_otherwise(body: list[ast.stmt], name: str) -> bool:
    """Whether the name is assigned or imported at the top of a file, in which case only importing it can tell."""
    names = {n.id for stmt in body for n in ast.walk(stmt) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imports = [a for stmt in body for a in getattr(stmt, "names", [])]
    return name in names or any(
        getattr(a, "asname", None) == name or getattr(a, "name", "") in (name, "*") for a in imports
    )


@dataclass(frozen=True)
class Workload:
    """A model and its data: `build_model(**model_kwargs)` gives a compiled model; `data` is (x, y) arrays, or a factory.

    The model is built under `dtype_policy`, and compiled by XLA or not as `jit_compile` says; None leaves either to it.
    """

    build_model: Callable[..., Any] | Reference
    data: Any
    validation: Any = None
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype_policy: str | None = None
    jit_compile: bool | None = None

    def save(self, folder: Path) -> None:
        """Write the workload to a folder: one pickle, and a file for each large array.

        Raises:
            UsageError: something in it cannot be pickled, or there is no room for the arrays.
        """
        with handing_over(), open(folder / _PICKLE_FILE, "wb") as file:
            pickle.dump(list(sys.path), file)
            _ArrayPickler(file, folder).dump(self)


def load(folder: Path) -> Workload:
    """Read back a workload, its arrays mapped into memory; the saver's module search path is taken over first."""
    with open(folder / _PICKLE_FILE, "rb") as file:
        path = pickle.load(file)
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        workload = _ArrayUnpickler(file, folder).load()
    assert isinstance(workload, Workload)
    return workload


@contextlib.contextmanager
def handing_over() -> Iterator[None]:
    """Say what cannot be handed to another process, and why."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"the arrays cannot be written for the trials to map: {error}. Point TMPDIR to a folder with more room"
        ) from None
    except Exception as error:  # what the methods raise by which the user's objects are pickled
        raise UsageError(
            f"the model or the data cannot be handed to another process: {str(error) or type(error).__name__}. "
            "Pass functions that open files and build objects when they are called"
        ) from None


class _ArrayPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles by cloudpickle, large arrays to files beside the pickle."""

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        super().__init__(file)
        self._folder = folder
        self._names: dict[int, str] = {}

    def persistent_id(self, obj: Any) -> str | None:
        if not is_plain_array(obj) or obj.nbytes < _SMALL_ARRAY_BYTES:
            return None
        if id(obj) not in self._names:
            self._names[id(obj)] = f"array-{len(self._names)}.npy"
            np.save(self._folder / self._names[id(obj)], obj)
        return self._names[id(obj)]


class _ArrayUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_load(self, pid: Any) -> np.ndarray[Any, Any]:
        mapped: np.ndarray[Any, Any] = np.load(self._folder / str(pid), mmap_mode="r")
        return mapped.view(np.ndarray)


def is_plain_array(obj: Any) -> bool:
    """Whether it is a NumPy array without Python objects in it."""
    return isinstance(obj, np.ndarray) and not obj.dtype.hasobject
