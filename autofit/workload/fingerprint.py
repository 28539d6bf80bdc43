"""The identity of a workload: a hash of its functions with their modules, of their arguments and of
its data.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle

from autofit.workload.own_modules import OwnModules, members_of, names_in
from autofit.workload.reference import Reference, expanded
from autofit.workload.saveable import identity_of, is_saveable
from autofit.workload.workload import explained_pickling_errors, is_plain_array

# of an array whose values count: sizes of layers, or a random state; a larger one is data
_VALUES_BYTES = 4096


def identify(**parts: Any) -> str:
    """Return the fingerprint of a workload or a sampler, given as its parts.

    It is the same in every process.
    """
    # It depends on the user's own modules that define the functions or that these import, on
    # arguments, defaults and closures, and on what the program has set. Of arrays other than small
    # ones, shape and type count, as their values change neither speed nor memory. What else the
    # functions may read does not count: files, environment variables, and modules that they import
    # by a computed name.
    importlib.invalidate_caches()  # the user of a notebook may have written a module a moment ago
    modules = OwnModules()
    hasher = _Hasher(modules)
    with explained_pickling_errors(parts):
        hashed = {**parts}
        # the script of functions is None, and was no part when there were no scripts
        if parts.get("script", "") is None:
            del hashed["script"]
        for name, part in parts.items():
            if name.endswith("_kwargs"):
                hashed[name] = sorted(expanded({**part}).items())
        hasher.dump(hashed)
    digests = modules.digests.items()
    files = {f"{file.name} {digest}" for file, digest in digests}
    text = "\n".join([hasher.digest.hexdigest(), *sorted(files)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


class _Hasher(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """A pickler that hashes its output, and adds modules of functions and classes to `modules`."""

    # Functions and classes are hashed by name. Some cannot be imported by name in a trial: those of
    # `__main__` or a notebook, and those made by another function. For these, the byte code of a
    # function or the members of a class, the globals that they use, and the modules that they
    # import are hashed as well. What changes nothing may count, such as a docstring: a new tune
    # costs less than an answer for other code. An object without a stable pickle, such as a set of
    # objects, has another hash in each process.

    def __init__(self, modules: OwnModules) -> None:
        self.digest = hashlib.sha256()
        super().__init__(SimpleNamespace(write=self.digest.update))
        self._modules = modules

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is str:  # equal strings may be one object or two
            return obj.encode(errors="surrogatepass")
        if type(obj) in (set, frozenset):  # their order differs between processes
            return type(obj).__name__, sorted(obj, key=repr)
        is_plain = is_plain_array(obj)
        if is_plain or (type(obj).__module__ == "torch" and hasattr(obj, "stride")):
            is_small = is_plain and obj.nbytes <= _VALUES_BYTES
            values = obj.tobytes() if is_small else b""
            return "array", tuple(obj.shape), str(obj.dtype), values
        return "parts" if obj is _Hasher else None

    def reducer_override(self, obj: Any) -> Any:
        parts: list[Any]
        if isinstance(obj, CodeType):
            parts = [repr(_parts_of(obj))]
            _, imports = names_in(obj)
            self._modules.follow(imports, Path(obj.co_filename))
        elif isinstance(obj, ModuleType):
            parts = [obj.__name__]
            # code can reach loaded submodules as attributes
            if self._modules.add_module(obj.__name__):
                for name in list(sys.modules):
                    if name.startswith(f"{obj.__name__}."):
                        self._modules.add_module(name)
        elif isinstance(obj, Reference):
            parts = [obj.name if obj.path else obj.text]
            if obj.path:
                self._modules.folders.insert(0, str(obj.path.parent))
            self._modules.follow({obj.module}, Path())
        elif isinstance(
            getattr(obj, "__qualname__", None), str
        ):  # a class or function, also if Cython compiled it
            parts = self._definition(obj)
        elif is_saveable(obj):
            parts = identity_of(obj)
        else:
            return NotImplemented  # reduced as usual
        # the parts are given as the object's state: pickle knows the object by then, so the parts
        # may contain it
        return _Hasher, (type(obj).__name__,), parts

    def _definition(self, value: Any) -> list[Any]:
        name = value.__qualname__
        module = str(getattr(value, "__module__", None))
        is_class = isinstance(value, type)
        # decorators change the `__module__` of a function: the module with its code counts, too
        scope = {} if is_class else getattr(value, "__globals__", {})
        code_module = str(scope.get("__name__", module))
        is_own = self._modules.add_module(code_module)
        loaded = sys.modules.get(module) if module != "__main__" else None
        imported = loaded
        for part in name.split("."):
            imported = getattr(imported, part, None)
        is_imported = imported is value and hasattr(loaded, "__file__")
        is_named = is_imported or not is_own
        parts = [module, name]
        if is_class:
            if is_named:
                return parts
            return [*parts, type(value), value.__bases__, members_of(value)]
        of_function = ("__closure__", "__self__", "__wrapped__")
        parts += [getattr(value, key, None) for key in of_function]
        code = getattr(value, "__code__", None)
        if is_named or code is None:
            return parts
        names, _ = names_in(code)
        used = {key: scope[key] for key in sorted(names & scope.keys())}
        return [
            *parts,
            code,
            value.__defaults__,
            value.__kwdefaults__,
            vars(value),
            used,
        ]


def _parts_of(code: CodeType) -> tuple[Any, ...]:
    """Return what code does, without its positions; its text is the same in every process."""
    # from Python 3.13 on, the body of a class has its own line as a constant
    position = code.co_firstlineno if "__firstlineno__" in code.co_names else None
    constants = list[Any]()
    for part in code.co_consts:
        if isinstance(part, CodeType):
            constants.append(_parts_of(part))
        elif isinstance(part, frozenset):
            constants.append(sorted(part, key=repr))
        elif part is None or part != position:
            constants.append(part)
    counts = (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
    )
    exceptions = getattr(code, "co_exceptiontable", None)  # Python 3.10 has none
    return (
        code.co_code,
        constants,
        counts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        exceptions,
    )
