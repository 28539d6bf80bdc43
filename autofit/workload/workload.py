"""The user's model and data, in a form that can be sent to another process."""
# Functions named in a YAML file are sent as references. Functions from Python are sent by
# cloudpickle, which also supports those of `__main__` and of notebooks. Large NumPy arrays,
# including those inside other objects, are written once per tune to `.npy` files, which each trial
# maps into memory; of an array that is mapped from a file, the file is named.

from __future__ import annotations

import contextlib
import importlib
import itertools
import mmap
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import IO, Annotated, Any, Literal

import cloudpickle
import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from autofit.backends import BackendName
from autofit.errors import UsageError
from autofit.workload import fit_options, unpicklable
from autofit.workload.arguments import EXPLAINED, Keywords
from autofit.workload.inputs.pydataset import register_iterators
from autofit.workload.program import Program, read_program
from autofit.workload.reference import Reference, expanded, importing
from autofit.workload.saveable import is_saveable, reduced
from autofit.workload.script import Script
from autofit.workload.unpicklable import Part

_PICKLE_FILE = "workload.pickle"
_SCRIPT_FILE = "script.json"
_SCRIPTS = TypeAdapter(Script)
# a smaller array is pickled: a file of its own would cost more time than it saves
_SMALL_ARRAY_BYTES = 64 * 1024


@dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
class Workload:
    """A model and its data: the arguments of a tune that are sent to the processes of its
    trials.
    """

    build_model: Any
    data: Any
    validation: Any = None
    model_kwargs: Keywords = Field(default={})
    data_kwargs: Keywords = Field(default={})
    validation_kwargs: Keywords = Field(default={})
    fit_kwargs: Annotated[Keywords, AfterValidator(fit_options.validated)] = Field(
        default={}
    )
    dtype_policy: str | None = None
    jit_compile: bool | None = None
    call: Literal["fit", "predict", "evaluate"] = "fit"
    backend: BackendName | None = None
    distribution: Literal["data_parallel"] | None = None

    # no arguments: the script that is tuned in place of these functions, and what the calling
    # process has set
    script: Script | None = None
    program: Program = Field(default_factory=read_program)

    _explained = EXPLAINED

    def __post_init__(self) -> None:
        register_iterators()
        split = fit_options.VALIDATION_SPLIT
        if split in self.fit_kwargs and self.validation is not None:
            raise UsageError(
                "pass either validation or validation_split, not both",
                key=f"fit_kwargs.{split}",
            )
        given = {
            f"fit_kwargs.{name}"
            for name in self.fit_kwargs
            if name not in fit_options.OF_INFERENCE
        }
        given |= set() if self.validation is None else {"validation"}
        if given and self.call != fit_options.FIT:
            raise UsageError(f"{self.call} does not take it; remove it", key=min(given))

    def save(self, folder: Path) -> None:
        """Write the workload to a folder: one pickle, and one file for each large array; or the
        script.
        """
        if self.script is not None:
            # the first run may have chosen one of several calls of `fit`
            if script_in(folder) is None:
                save_script(self.script, folder)
            return
        # a script that reads its arguments when imported must not read those of `autofit`
        build = self.build_model
        argv = (
            [str(build.path or build.module)]
            if isinstance(build, Reference)
            else sys.argv
        )
        kwargs = {
            name: expanded(getattr(self, name))
            for name in ("model_kwargs", "data_kwargs", "validation_kwargs")
        }
        with (
            explained_pickling_errors({**vars(self), **kwargs}),
            open(folder / _PICKLE_FILE, "wb") as file,
        ):
            pickle.dump(
                (list(sys.path), argv, replace(self.program, custom_objects={})), file
            )
            _ArrayPickler(file, folder).dump(replace(self, **kwargs))


# set by pydantic
_FIELDS: dict[str, FieldInfo] = Workload.__pydantic_fields__  # type: ignore[attr-defined]
# the arguments of a tune that are part of the workload, each with its type and default
ARGUMENTS = {
    name: field for name, field in _FIELDS.items() if name not in ("program", "script")
}


def save_script(script: Script, folder: Path) -> None:
    """Write a script to a folder, for the processes of trials."""
    (folder / _SCRIPT_FILE).write_bytes(_SCRIPTS.dump_json(script))


def script_in(folder: Path) -> Script | None:
    """Read the script that a workload in a folder is; None if it has functions."""
    file = folder / _SCRIPT_FILE
    return _SCRIPTS.validate_json(file.read_bytes()) if file.exists() else None


def load(folder: Path) -> Workload:
    """Read a saved workload, with its arrays mapped into memory; raise UsageError as `importing`
    does.
    """
    with open(folder / _PICKLE_FILE, "rb") as file:
        # the user's modules need the search path and the settings of the process that saved the
        # workload
        path, sys.argv[:], program = pickle.load(file)
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        program.apply()  # for the modules that the next line imports
        with importing(sys.argv):
            workload: Workload = pickle.load(file)
    # those modules may have made other settings, which the program then changed
    workload.program.apply()
    return workload


@contextlib.contextmanager
def explained_pickling_errors(value: Any = None) -> Iterator[None]:
    """Turn any error of pickling a value into a `UsageError` that names the cause, with a
    remedy.
    """
    try:
        yield
    except OSError as error:
        try:
            Path.cwd()
        except FileNotFoundError:
            raise UsageError(
                "the working folder was deleted; change to a folder that exists"
            ) from None
        raise UsageError(
            f"the arrays for the trials cannot be written to a temporary file: {error}. "
            "Set TMPDIR to a folder with more free space"
        ) from None
    except Exception as error:  # raised by the methods that pickle the user's objects
        way = [] if value is None else unpicklable.find(Part(value))
        culprit = way[-1] if len(way) > 1 else "the model, the data or the sampler"
        raise UsageError(
            f"{culprit} cannot be sent to another process: {str(error) or type(error).__name__}. "
            f"{unpicklable.remedy(way)}"
        ) from None


class _ArrayPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A cloudpickle pickler that writes large arrays to files next to the pickle."""

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        super().__init__(file)
        self._files = (folder / f"array-{number}.npy" for number in itertools.count())

    def reducer_override(self, obj: Any) -> Any:
        # torch.backends.cudnn and others are instances of subclasses of modules, which cloudpickle
        # does not know
        if (
            isinstance(obj, ModuleType)
            and type(obj) is not ModuleType
            and sys.modules.get(obj.__name__) is obj
        ):
            return importlib.import_module, (obj.__name__,)
        if is_saveable(obj):
            return reduced(obj)
        if not is_plain_array(obj) or obj.nbytes < _SMALL_ARRAY_BYTES:
            return super().reducer_override(obj)
        if (
            isinstance(obj, np.memmap)
            and obj.filename
            and obj.mode != "c"
            and obj.flags.c_contiguous
        ):
            obj.flush()
            # pages start there
            begin = np.frombuffer(obj._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
            offset = (
                obj.offset
                - obj.offset % mmap.ALLOCATIONGRANULARITY
                + obj.ctypes.data
                - begin
            )
            return np.memmap, (obj.filename, obj.dtype, "r", offset, obj.shape)
        file = next(self._files)
        np.save(file, obj)
        return _mapped, (file,)


def _mapped(file: Path) -> Any:
    return np.load(file, mmap_mode="r").view(np.ndarray)


def is_plain_array(obj: Any) -> bool:
    """Return whether an object is a NumPy array that holds no Python objects."""
    return isinstance(obj, np.ndarray) and not obj.dtype.hasobject
