"""The user's model and data, in a form that can be passed to another process.

Callables are passed as references (from YAML) or by cloudpickle (from Python, so that functions of `__main__` and of
notebooks work). Large NumPy arrays, also those inside other objects, are written once per tune to `.npy` files that each
trial maps into memory.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np

from autofit.errors import UsageError
from autofit.workload.reference import Reference

_PICKLE_FILE = "workload.pickle"
_SMALL_ARRAY_BYTES = 64 * 1024  # below this a file of its own costs more than it saves


@dataclass(frozen=True)
class Workload:
    """A model and its data: `build_model(**model_kwargs)` returns a compiled model; `data` is arrays, or a factory.

    `fit_kwargs` are further arguments of `fit`, as `fit_options.validated` returns them.
    `dtype_policy` is set while the model is built, `jit_compile` turns XLA on or off; None leaves both to the model.
    `backend` is the backend of Keras; None for that of the environment. `distribution` is how it is built for several
    devices; None where `build_model` sees to that itself.
    """

    build_model: Callable[..., Any] | Reference
    data: Any
    validation: Any = None
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fit_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype_policy: str | None = None
    jit_compile: bool | None = None
    backend: str | None = None
    distribution: str | None = None

    def save(self, folder: Path) -> None:
        """Write the workload to a folder: one pickle, and a file for each large array.

        Raises:
            UsageError: something in it cannot be pickled, or the arrays do not fit on the disk.
        """
        with explained_pickling_errors(), open(folder / _PICKLE_FILE, "wb") as file:
            pickle.dump(list(sys.path), file)
            _ArrayPickler(file, folder).dump(self)


def load(folder: Path) -> Workload:
    """Read a saved workload, its arrays mapped into memory, under the module search path of the process that saved it."""
    with open(folder / _PICKLE_FILE, "rb") as file:
        path = pickle.load(file)
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        workload = _ArrayUnpickler(file, folder).load()
    assert isinstance(workload, Workload)
    return workload


@contextlib.contextmanager
def explained_pickling_errors() -> Iterator[None]:
    """Turn what pickling raises into a `UsageError` with a remedy."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"the arrays cannot be written for the trials to map: {error}. Point TMPDIR to a folder with more room"
        ) from None
    except Exception as error:  # raised by the methods that pickle the user's objects
        raise UsageError(
            f"the model or the data cannot be handed to another process: {str(error) or type(error).__name__}. "
            "Pass functions that open files and build objects when they are called"
        ) from None


class _ArrayPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A cloudpickle pickler that writes large arrays to files beside the pickle."""

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
    """Whether an object is a NumPy array that holds no Python objects."""
    return isinstance(obj, np.ndarray) and not obj.dtype.hasobject
