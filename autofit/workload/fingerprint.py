"""The identity of a workload: a hash of its functions with their modules and arguments, and its packages' versions."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle

from autofit.workload.callbacks import TrialCallbacks
from autofit.workload.fit_options import CALLBACKS
from autofit.workload.own_modules import OwnModules
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, explained_pickling_errors, is_plain_array
from autofit.workload.written import expanded

_PLAIN = (str, bytes, int, float, bool, tuple, Path)  # globals of these types count even if their module is hashed
_distributions = functools.cache(importlib.metadata.packages_distributions)  # reads the records of all: 0.2 s
_ARRAY_END_BYTES = 1 << 20  # hashed at each end of an array: enough to tell arrays apart, and fast for large arrays
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# attributes of a class that do not count: documentation, positions in the file, and an ABC's cache of other classes
_NOT_MEMBERS = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}


class Identity(NamedTuple):
    """A workload's fingerprint, and the versions of the installed packages that its modules import."""

    fingerprint: str
    versions: dict[str, str]


def identify(workload: Workload) -> Identity:
    """Return the identity of a workload; its fingerprint is the same in every process.

    It depends on the user's own modules that define the functions or that these import, on arguments, defaults and
    closures, and on what the program has set. Of arrays given as data, shape and type count, as their values change neither
    speed nor memory. Files that the functions read do not count.
    """
    importlib.invalidate_caches()  # the user of a notebook may have written a module a moment ago
    fit_kwargs, program, modules = dict(workload.fit_kwargs), workload.program, OwnModules()
    if isinstance(callbacks := fit_kwargs.get(CALLBACKS), TrialCallbacks):  # by type: their values change between runs
        fit_kwargs[CALLBACKS] = [[type(each) for each in callbacks.run], callbacks.left_out, callbacks.of_batches]
    kwargs = (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs, fit_kwargs)
    settings = [workload.dtype_policy, workload.jit_compile, workload.distribution, workload.call, program.lines]
    parts = [workload.build_model, workload.data, workload.validation]
    objects, functions = _Hasher(modules, arrays_by_form=True), _Hasher(modules)
    with explained_pickling_errors():
        objects.dump([None if callable(part) else part for part in parts])
        functions.dump([part if callable(part) else None for part in parts])
        functions.dump([settings, dict(program.custom_objects), [sorted(expanded(dict(each)).items()) for each in kwargs]])
    packages = sorted(modules.packages - {"", "cloudpickle", *sys.stdlib_module_names})  # closures import cloudpickle
    files = sorted({f"{file.name} {digest}" for file, digest in modules.digests.items()})
    text = "\n".join([objects.digest.hexdigest(), functions.digest.hexdigest(), *files])
    fingerprint = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return Identity(fingerprint, {name: version for name in packages if (version := version_of(name))})


def identity_of(value: Any) -> str:
    """Return a hash of an object's class and state; it is the same in every process."""
    hasher = _Hasher(OwnModules())
    with explained_pickling_errors():
        hasher.dump(value)
    return hasher.digest.hexdigest()[:16]


def version_of(package: str) -> str | None:
    """Return the version of a package, given the name under which it is imported; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return next(map(importlib.metadata.version, _distributions().get(package, ())), None)


class _Hasher(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A pickler that hashes its output, and adds the modules that define functions and classes to `modules`."""

    # Functions and classes are hashed by name. Some cannot be imported by name in a trial: those of `__main__` or a
    # notebook, and those made by another function. For these, the byte code of a function or the members of a class, the
    # globals that they use, and the modules that they import are hashed as well. An object without a stable pickle, such as
    # a set of objects, has another hash in each process.

    def __init__(self, modules: OwnModules, *, arrays_by_form: bool = False) -> None:
        self.digest = hashlib.sha256()
        super().__init__(SimpleNamespace(write=self.digest.update))
        self._modules, self._arrays_by_form = modules, arrays_by_form

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is str:  # equal strings may be one object or two
            return obj.encode(errors="surrogatepass")
        if type(obj) in (set, frozenset):  # their order differs between processes
            return type(obj).__name__, sorted(obj, key=repr)
        if is_plain_array(obj) or (self._arrays_by_form and type(obj).__module__ == "torch" and hasattr(obj, "stride")):
            form = "array", tuple(obj.shape), str(obj.dtype)
            return form if self._arrays_by_form else (*form, *_ends_of(obj))
        return "parts" if obj is _Hasher else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | BuiltinFunctionType | type):
            parts = self._definition(obj)
        elif isinstance(obj, CodeType):
            parts = _code_parts(obj)
            used = [(one.opname, one.argval) for one in dis.get_instructions(obj) if isinstance(one.argval, str)]
            # absolute or relative
            imports = {f"{dots}{name}.*" for op, name in used if op == "IMPORT_NAME" for dots in ("", ".", "..")}
            self._modules.follow(imports, {text for _, text in used}, Path(obj.co_filename))
        elif isinstance(obj, ModuleType):
            parts = [obj.__name__]
            if self._modules.contain(obj.__name__):  # code can reach loaded submodules as attributes
                for name in [name for name in sys.modules if name.startswith(f"{obj.__name__}.")]:
                    self._modules.contain(name)
        elif isinstance(obj, Reference):
            parts = [obj.name if obj.path else obj.text]
            if obj.path:
                self._modules.folders.insert(0, str(obj.path.parent))
            self._modules.follow({obj.module}, set(), Path())
        else:
            reduce = self.dispatch_table.get(type(obj))
            reduced = reduce(obj) if reduce else obj.__reduce_ex__(self.proto)
            if not isinstance(reduced, str):
                return reduced
            # `reduced` is the name of a global, as for a function decorated with functools.cache or compiled by Cython
            parts = [reduced, type(obj), *(self._definition(obj) if hasattr(obj, "__qualname__") else ())]
        # the parts are given as the object's state: pickle knows the object by then, so the parts may contain it
        return _Hasher, (type(obj).__name__,), parts

    def _definition(self, value: Any) -> list[Any]:
        # of a function, the module with its code counts, as decorators change `__module__`; the class of functions that
        # Cython compiles has descriptors in place of both
        code = None if isinstance(value, type) else getattr(value, "__code__", None)
        name, module = value.__qualname__, str(getattr(value, "__module__", None))
        is_own = self._modules.contain(str(value.__globals__.get("__name__")) if code else module)
        loaded = sys.modules.get(module) if module != "__main__" else None
        imported = functools.reduce(lambda held, part: getattr(held, part, None), name.split("."), loaded)
        is_imported = imported is value and hasattr(loaded, "__file__")
        if isinstance(value, type):
            members = {key: member for key, member in vars(value).items() if key not in _NOT_MEMBERS}
            return [module, name, *([type(value), value.__bases__, members] if is_own and not is_imported else ())]
        parts = [module, name, *(getattr(value, held, None) for held in ("__closure__", "__self__", "__wrapped__"))]
        if code is None or not is_own:
            return parts
        used = {name: value.__globals__[name] for name in _globals_of(code) if name in value.__globals__}
        if is_imported:
            used = {name: held for name, held in used.items() if isinstance(held, _PLAIN)}
        return [*parts, value.__defaults__, value.__kwdefaults__, vars(value), used, None if is_imported else code]


def _ends_of(array: Any) -> tuple[bytes, bytes]:
    count = max(1, _ARRAY_END_BYTES // max(1, array.itemsize))
    return array.flat[:count].tobytes(), array.flat[-count:].tobytes()


def _code_parts(code: CodeType) -> list[Any]:
    """Return a function's instructions with the constants that they use, but without positions and docstring."""
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames)
    instructions = list(dis.get_instructions(code))
    following = zip(instructions, [*instructions[1:], instructions[0]], strict=True)
    # the body of a class stores its documentation and, since Python 3.13, its position
    counted = [(one.opname, one.argval) for one, after in following if after.argval not in _NOT_MEMBERS]
    return [arguments, code.co_freevars, getattr(code, "co_exceptiontable", None), counted]  # None in Python 3.10


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in _GLOBALS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
