"""The identity of a workload: a hash of its functions, their modules and arguments, and the versions of its packages."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib.metadata
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle

from autofit.workload.environment import plain
from autofit.workload.fit_options import CALLBACKS
from autofit.workload.own_modules import OwnModules, read
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, explained_pickling_errors, is_plain_array

_PLAIN = (str, bytes, int, float, bool, tuple, Path)  # types of globals that count even where their module counts
_ARRAY_END_BYTES = 1 << 20  # of each end of an array: enough to tell arrays apart, cheap for large ones
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# attributes of a class that are not members: documentation, positions, and an ABC's cache of other classes
_NOT_MEMBERS = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}


@dataclass(frozen=True)
class Identity:
    """A workload's fingerprint, and the versions of the installed packages that its modules import."""

    fingerprint: str
    versions: dict[str, str]


def identify(workload: Workload) -> Identity:
    """Fingerprint a workload: the same workload has the same fingerprint in another process and on another day.

    The fingerprint changes with every own module that the functions come from or import, directly or not (see
    `own_modules`), and with arguments, defaults and closures (see `_Hasher`). Arrays given as data count by shape and type
    only, because their values change neither speed nor memory. Files that the functions read do not count.
    """
    importlib.invalidate_caches()  # a notebook's user may have written a module a moment ago
    inputs, fit_kwargs = (workload.data, workload.validation), dict(workload.fit_kwargs)
    named = (workload.build_model, *inputs, *fit_kwargs.values())
    modules = OwnModules([str(part.path.parent) for part in named if isinstance(part, Reference) and part.path])
    if isinstance(fit_kwargs.get(CALLBACKS), list | tuple):  # the values in callbacks change from run to run
        fit_kwargs[CALLBACKS] = [type(callback) for callback in fit_kwargs[CALLBACKS]]
    kwargs = (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs, fit_kwargs)
    settings = (workload.dtype_policy, workload.jit_compile, workload.distribution)
    objects, functions, arguments = _Hasher(modules, arrays_by_form=True), _Hasher(modules), _Hasher(modules)
    with explained_pickling_errors():
        objects.dump([part for part in inputs if not callable(part)])
        functions.dump([workload.build_model, *(part if callable(part) else None for part in inputs), *settings])
        arguments.dump([sorted(plain(dict(given)).items()) for given in kwargs])
    modules.follow_texts(arguments.texts)
    digests = [hasher.digest.hexdigest() for hasher in (objects, functions, arguments)]
    packages = sorted(modules.packages - {"", "cloudpickle", *sys.stdlib_module_names})  # cloudpickle: of closures' cells
    versions = {name: version for name in packages if (version := version_of(name))}
    fingerprint = hashlib.sha256("\n".join([*digests, modules.text()]).encode(errors="surrogatepass"))
    return Identity(fingerprint.hexdigest()[:16], versions)


def version_of(package: str) -> str | None:
    """The version of an installed package, by the name under which it is imported; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    distributions = _distributions().get(package)
    return importlib.metadata.version(distributions[0]) if distributions else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by the names under which they are imported, such as `pillow` by `PIL`; reads all their records."""
    return importlib.metadata.packages_distributions()


class _Hasher(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A pickler whose output is the same in every process, and is hashed.

    Functions and classes count by name; those that a trial cannot import by name (of `__main__` or a notebook, or made by
    another function) also by their byte code or members, the globals that they name, and the imports of their script or
    cell. What has no stable pickle, such as a set of objects, hashes differently in each process.

    Args:
        modules: takes the modules that define functions and classes.
        arrays_by_form: count arrays by shape and type only, not also by their first and last values.

    Attributes:
        digest: the hash.
        texts: all strings in it.
    """

    def __init__(self, modules: OwnModules, *, arrays_by_form: bool = False) -> None:
        self.digest, self.texts = hashlib.sha256(), set[str]()
        super().__init__(SimpleNamespace(write=self.digest.update))
        self._modules = modules
        self._arrays_by_form = arrays_by_form

    def persistent_id(self, obj: Any) -> Any:
        """Replace arrays, sets, whose order differs between processes, and the mark of `reducer_override`."""
        if isinstance(obj, str):
            self.texts.add(obj)
        if is_plain_array(obj):
            return self._array(obj)
        if type(obj) in (set, frozenset):
            return type(obj).__name__, sorted(obj, key=repr)
        return "parts" if obj is _Hasher else None

    def reducer_override(self, obj: Any) -> Any:
        """Pickle everything but the built-in containers and values."""
        parts: Any
        if isinstance(obj, FunctionType | BuiltinFunctionType | type):
            parts = self._definition(obj)
        elif isinstance(obj, CodeType):
            parts = _code_parts(obj)
        elif isinstance(obj, ModuleType | Reference):
            parts = self._module(obj) if isinstance(obj, ModuleType) else self._reference(obj)
        else:
            reduce = self.dispatch_table.get(type(obj))
            reduced = reduce(obj) if reduce else obj.__reduce_ex__(self.proto)
            if not isinstance(reduced, str):
                return reduced
            # the name of a global, as of what functools.cache or Cython makes of a function
            parts = [reduced, type(obj), *(self._definition(obj) if hasattr(obj, "__qualname__") else ())]
        # as a state, the parts are pickled when the object is known already, so they may contain it
        return _Hasher, (type(obj).__name__,), parts

    def _module(self, module: ModuleType) -> list[str]:
        """A module's name; its loaded submodules are its attributes."""
        if self._modules.contain(module.__name__):
            for name in [name for name in sys.modules if name.startswith(f"{module.__name__}.")]:
                self._modules.contain(name)
        return [module.__name__]

    def _reference(self, reference: Reference) -> list[str]:
        """A function named in a file: its name, and its module's unless it is given by path."""
        if reference.path is not None:
            self._modules.add(reference.path)
            return [reference.name]
        self._modules.follow([reference.module], Path())
        return [reference.text]

    def _definition(self, value: Any) -> list[Any]:
        """A function or class: its name, what it was made with and, if it is the user's own, what it holds."""
        name, module, code = value.__qualname__, getattr(value, "__module__", None) or "", getattr(value, "__code__", None)
        defined_in = value.__globals__.get("__name__") or "" if code else module  # decorators change `__module__`
        is_own = self._modules.contain(module) | self._modules.contain(defined_in)  # adds both
        loaded = sys.modules.get(module) if module != "__main__" else None
        imported = functools.reduce(lambda held, part: getattr(held, part, None), name.split("."), loaded)
        is_imported = imported is value and hasattr(loaded, "__file__")
        if isinstance(value, type):
            members = {key: member for key, member in vars(value).items() if key not in _NOT_MEMBERS and not is_imported}
            return [module, name, *([type(value), value.__bases__, members] if is_own else ())]
        parts = [module, name, *(getattr(value, held, None) for held in ("__closure__", "__self__", "__wrapped__"))]
        if code is None or not is_own:
            return parts
        parts += [value.__defaults__, value.__kwdefaults__, vars(value)]
        used = {name: value.__globals__[name] for name in _names_of(code, _GLOBALS) if name in value.__globals__}
        if is_imported:
            return [*parts, {name: held for name, held in used.items() if isinstance(held, _PLAIN)}]
        lines = linecache.getlines(code.co_filename)
        imports = read("".join(lines).encode())[1] if lines else {f"{name}.*" for name in _names_of(code, {"IMPORT_NAME"})}
        self._modules.follow(imports, Path(code.co_filename))
        return [*parts, used, code]

    def _array(self, array: Any) -> tuple[Any, ...]:
        """An array's shape and type, and a hash of its ends unless only the form counts."""
        form = "array", array.shape, str(array.dtype)
        if self._arrays_by_form:
            return form
        flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
        count = max(1, _ARRAY_END_BYTES // max(1, array.itemsize))
        return *form, hashlib.sha256(flat[:count].tobytes() + flat[-count:].tobytes()).hexdigest()


def _code_parts(code: CodeType) -> list[Any]:
    """Instructions without their positions. Constants count where they are used, so that docstrings do not."""
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames)
    instructions = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    stores_line = ("STORE_NAME", "__firstlineno__")  # from Python 3.13 on, a class body stores the number of its line
    if stores_line in instructions:
        del instructions[instructions.index(stores_line) - 1]
    return [arguments, code.co_freevars, getattr(code, "co_exceptiontable", None), instructions]  # None: Python 3.10


def _names_of(code: CodeType, operations: set[str]) -> Iterator[str]:
    """The names in operations of a function's code and of the functions inside it."""
    yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in operations)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant, operations)
