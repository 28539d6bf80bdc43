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
from autofit.workload.fit_options import CALLBACKS, FIT
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

    The fingerprint depends on each of the user's own modules that defines one of the functions or is imported, directly or
    indirectly, by such a module (see `own_modules`), on arguments, defaults and closures (see `_Hasher`), and on what the
    program has set in Keras (see `program`). It depends on the shape and type of arrays given as data, but not on their
    values, which change neither speed nor memory. It does not depend on files that the functions read.
    """
    importlib.invalidate_caches()  # the user of a notebook may have written a module a moment ago
    inputs, fit_kwargs = (workload.data, workload.validation), dict(workload.fit_kwargs)
    named = (workload.build_model, *inputs, *fit_kwargs.values())
    modules = OwnModules([str(part.path.parent) for part in named if isinstance(part, Reference) and part.path])
    if isinstance(callbacks := fit_kwargs.get(CALLBACKS), TrialCallbacks):  # by type: their values change between runs
        fit_kwargs[CALLBACKS] = [[type(each) for each in callbacks.run], callbacks.left_out, callbacks.of_batches]
    kwargs = (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs, fit_kwargs)
    settings = [workload.dtype_policy, workload.jit_compile, workload.distribution, *workload.program.decisive]
    settings += [] if workload.call == FIT else [workload.call]
    objects, functions, arguments = _Hasher(modules, arrays_by_form=True), _Hasher(modules), _Hasher(modules)
    with explained_pickling_errors():
        objects.dump([part for part in inputs if not callable(part)])
        functions.dump([workload.build_model, *(part if callable(part) else None for part in inputs), *settings])
        arguments.dump([sorted(expanded(dict(given)).items()) for given in kwargs])
    modules.follow_texts(functions.texts | arguments.texts)
    digests = [hasher.digest.hexdigest() for hasher in (objects, functions, arguments)]
    packages = sorted(modules.packages - {"", "cloudpickle", *sys.stdlib_module_names})  # closures import cloudpickle
    versions = {name: version for name in packages if (version := version_of(name))}
    fingerprint = hashlib.sha256("\n".join([*digests, modules.text()]).encode(errors="surrogatepass"))
    return Identity(fingerprint.hexdigest()[:16], versions)


def identity_of(value: Any) -> str:
    """Return a hash of an object's class and state; it is the same in every process."""
    hasher = _Hasher(OwnModules([]))
    with explained_pickling_errors():
        hasher.dump(value)
    return hasher.digest.hexdigest()[:16]


def version_of(package: str) -> str | None:
    """Return the version of a package, given the name under which it is imported; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    distributions = _distributions().get(package)
    return importlib.metadata.version(distributions[0]) if distributions else None


class _Hasher(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A pickler that hashes its output, which is the same in every process.

    Functions and classes are hashed by name. Some cannot be imported by name in a trial: those of `__main__` or a notebook,
    and those made by another function. For these, the byte code of a function or the members of a class, the globals
    that they use, and the modules that they import are hashed as well. An object without a stable pickle, such as a set of
    objects, has another hash in each process.

    The modules that define functions and classes are added to `modules`. Of an array, the shape, the type and the first
    and last values are hashed; with `arrays_by_form`, only the shape and type. `texts` are all strings that were hashed.
    """

    def __init__(self, modules: OwnModules, *, arrays_by_form: bool = False) -> None:
        self.digest, self.texts = hashlib.sha256(), set[str]()
        super().__init__(SimpleNamespace(write=self.digest.update))
        self._modules = modules
        self._arrays_by_form = arrays_by_form

    def persistent_id(self, obj: Any) -> Any:
        """Replace arrays, tensors of torch, sets (whose order differs between processes) and `_Hasher` itself."""
        if isinstance(obj, str):
            self.texts.add(obj)
        if is_plain_array(obj):
            return self._array(obj)
        if self._arrays_by_form and type(obj).__module__ == "torch" and hasattr(obj, "stride"):
            return "array", tuple(obj.shape), str(obj.dtype)
        if type(obj) in (set, frozenset):
            return type(obj).__name__, sorted(obj, key=repr)
        return "parts" if obj is _Hasher else None

    def reducer_override(self, obj: Any) -> Any:
        parts: Any
        if isinstance(obj, FunctionType | BuiltinFunctionType | type):
            parts = self._definition(obj)
        elif isinstance(obj, CodeType):
            parts = _code_parts(obj)
            names = [one.argval for one in dis.get_instructions(obj) if one.opname == "IMPORT_NAME"]  # absolute or relative
            self._modules.follow([f"{dots}{name}.*" for name in names for dots in ("", ".", "..")], Path(obj.co_filename))
        elif isinstance(obj, ModuleType):
            parts = [obj.__name__]
            if self._modules.contain(obj.__name__):  # code can reach loaded submodules as attributes
                for name in [name for name in sys.modules if name.startswith(f"{obj.__name__}.")]:
                    self._modules.contain(name)
        elif isinstance(obj, Reference):
            parts = [obj.name if obj.path else obj.text]
            if obj.path:
                self._modules.add(obj.path)
            else:
                self._modules.follow([obj.module], Path())
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
        """Return the parts of a function or class: its name, its closure and, if it is the user's own, its contents."""
        name, module, code = value.__qualname__, getattr(value, "__module__", ""), getattr(value, "__code__", None)
        if isinstance(value, type):  # a class compiled by Cython, such as its class of functions, has descriptors there
            code = None
        module = module if isinstance(module, str) else ""
        defined_in = value.__globals__.get("__name__") or "" if code else module  # decorators change `__module__`
        is_own = any([self._modules.contain(module), self._modules.contain(defined_in)])  # a list: both are added
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
        used = {name: value.__globals__[name] for name in _globals_of(code) if name in value.__globals__}
        if is_imported:
            return [*parts, {name: held for name, held in used.items() if isinstance(held, _PLAIN)}]
        return [*parts, used, code]

    def _array(self, array: Any) -> tuple[Any, ...]:
        form = "array", array.shape, str(array.dtype)
        if self._arrays_by_form:
            return form
        flat = array.ravel()
        count = max(1, _ARRAY_END_BYTES // max(1, array.itemsize))
        return *form, hashlib.sha256(flat[:count].tobytes() + flat[-count:].tobytes()).hexdigest()


def _code_parts(code: CodeType) -> list[Any]:
    """Return a function's instructions with the constants that they use, but without positions and docstring."""
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames)
    instructions = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    stores_line = ("STORE_NAME", "__firstlineno__")  # since Python 3.13, a class body stores its line number
    if stores_line in instructions:
        del instructions[instructions.index(stores_line) - 1]
    return [arguments, code.co_freevars, getattr(code, "co_exceptiontable", None), instructions]  # None in Python 3.10


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in _GLOBALS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
