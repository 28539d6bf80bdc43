"""The identity of a workload: a hash of its functions with their modules and arguments, and its packages' versions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle

from autofit.workload.fit_options import CALLBACKS, TrialCallbacks
from autofit.workload.own_modules import NOT_MEMBERS, Code, OwnModules, read_code
from autofit.workload.reference import Reference, expanded
from autofit.workload.workload import Workload, explained_pickling_errors, is_plain_array

_PLAIN = (str, bytes, int, float, bool, tuple, Path)  # globals of these types count even if their module is hashed
_distributions = functools.cache(importlib.metadata.packages_distributions)  # reads the records of all: 0.2 s
_ARRAY_END_BYTES = 1 << 20  # hashed at each end of an array: enough to tell arrays apart, and fast for large arrays


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
    modules, program, fit_kwargs = OwnModules(), workload.program, dict(workload.fit_kwargs)
    if isinstance(callbacks := fit_kwargs.get(CALLBACKS), TrialCallbacks):  # by type: their values change between runs
        fit_kwargs[CALLBACKS] = [[type(each) for each in callbacks.run], callbacks.left_out, callbacks.of_batches]
    kwargs = (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs, fit_kwargs)
    settings = [workload.dtype_policy, workload.jit_compile, workload.distribution, workload.call, program.lines]
    parts = [workload.build_model, workload.data, workload.validation]
    objects, functions = _Hasher(modules, arrays_by_form=True), _Hasher(modules)
    with explained_pickling_errors([*parts, *kwargs]):
        objects.dump([None if callable(part) else part for part in parts])
        functions.dump([part if callable(part) else None for part in parts])
        functions.dump([settings, dict(program.custom_objects), [sorted(expanded(dict(each)).items()) for each in kwargs]])
    files = sorted({f"{file.name} {digest}" for file, digest in modules.digests.items()})
    text = "\n".join([objects.digest.hexdigest(), functions.digest.hexdigest(), *files])
    fingerprint = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    packages = sorted(modules.packages - {"", "cloudpickle", *sys.stdlib_module_names})  # closures import cloudpickle
    return Identity(fingerprint, {name: version for name in packages if (version := version_of(name))})


def identity_of(value: Any) -> str:
    """Return a hash of an object's class and state; it is the same in every process."""
    hasher = _Hasher(OwnModules())
    with explained_pickling_errors(value):
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
            if self._arrays_by_form:
                return form
            count = max(1, _ARRAY_END_BYTES // max(1, obj.itemsize))
            return (*form, obj.flat[:count].tobytes(), obj.flat[-count:].tobytes())
        return "parts" if obj is _Hasher else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | BuiltinFunctionType | type):
            parts = self._definition(obj)
        elif isinstance(obj, CodeType):
            code = read_code(obj)
            parts = code.parts
            self._modules.follow(code, Path(obj.co_filename))
        elif isinstance(obj, ModuleType):
            parts = [obj.__name__]
            if self._modules.add_module(obj.__name__):  # code can reach loaded submodules as attributes
                for name in [name for name in sys.modules if name.startswith(f"{obj.__name__}.")]:
                    self._modules.add_module(name)
        elif isinstance(obj, Reference):
            parts = [obj.name if obj.path else obj.text]
            self._modules.folders[:0] = [str(obj.path.parent)] if obj.path else []
            self._modules.follow(Code([], {obj.module}, set(), set()), Path())
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
        is_own = self._modules.add_module(str(value.__globals__.get("__name__")) if code else module)
        loaded = sys.modules.get(module) if module != "__main__" else None
        imported = functools.reduce(lambda outer, part: getattr(outer, part, None), name.split("."), loaded)
        is_imported = imported is value and hasattr(loaded, "__file__")
        if isinstance(value, type):
            members = {key: member for key, member in vars(value).items() if key not in NOT_MEMBERS}
            return [module, name, *([type(value), value.__bases__, members] if is_own and not is_imported else ())]
        parts = [module, name, *(getattr(value, key, None) for key in ("__closure__", "__self__", "__wrapped__"))]
        if code is None or not is_own:
            return parts
        used = {key: value.__globals__[key] for key in sorted(read_code(code).names & value.__globals__.keys())}
        if is_imported:
            used = {key: held for key, held in used.items() if isinstance(held, _PLAIN)}
        return [*parts, value.__defaults__, value.__kwdefaults__, vars(value), used, None if is_imported else code]
