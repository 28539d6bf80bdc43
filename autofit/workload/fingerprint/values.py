"""Values as text that is the same in every process; functions and classes bring in the modules that define them."""

from __future__ import annotations

import dis
import functools
import hashlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from autofit.workload.fingerprint.modules import Modules, is_own, read
from autofit.workload.workload import is_plain_array

_WRITTEN = (str, int, float, complex, bool, type(None), type(...))  # types whose repr() tells the value
_PLAIN = (str, bytes, int, float, bool, tuple, Path)  # globals that count where their module counts anyway
_ARRAY_END_BYTES = 1 << 20  # of each end of an array: enough to tell arrays apart, cheap on large ones
_REDUCE_PROTOCOL = 4  # above it objects may return buffers, which only a pickler can take
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# what a class has beside its members: documentation, positions, and what an ABC remembers of other classes
_NOT_MEMBERS = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}


class Values:
    """Writes values as text: mappings and sets sorted, objects by type and state, functions by module and name.

    A function or class that a trial cannot import by its name (of `__main__`, of a notebook, or made by another function)
    also counts by its members or byte code, by the globals that it names, and by the imports of its script or cell.

    Args:
        modules: takes the modules that define functions and classes.
        arrays_by_form: count arrays by shape and type only, rather than by their ends, too.
    """

    def __init__(self, modules: Modules, *, arrays_by_form: bool) -> None:
        self._modules = modules
        self._arrays_by_form = arrays_by_form
        self._written: dict[int, tuple[Any, str]] = {}  # holds the objects, so that no id() is used twice

    def text(self, value: Any) -> str:
        """A value as text."""
        if type(value) in _WRITTEN:
            return repr(value)
        if is_plain_array(value):
            return self._array(value)
        if id(value) not in self._written:
            self._written[id(value)] = value, f"again {type(value).__qualname__}"  # for an object that holds itself
            text = value if type(value) is bytes else self._composed(value).encode(errors="surrogatepass")
            self._written[id(value)] = value, f"{type(value).__qualname__} {hashlib.sha256(text).hexdigest()}"
        return self._written[id(value)][1]

    def _composed(self, value: Any) -> str:
        """A value that may hold others."""
        kind = type(value)
        if kind is dict:
            return str(sorted(f"{self.text(key)}:{self.text(item)}" for key, item in value.items()))
        if kind in (set, frozenset):
            return str(sorted(map(self.text, value)))
        if kind in (list, tuple):
            parts = value
        elif isinstance(value, CodeType):
            parts = _code_parts(value)
        elif isinstance(value, ModuleType):
            parts = [value.__name__]
            if self._is_own(value.__name__):  # the modules of a package are its attributes
                for below in [name for name in sys.modules if name.startswith(f"{value.__name__}.")]:
                    self._is_own(below)
        elif isinstance(value, property):
            parts = [value.fget, value.fset, value.fdel]
        elif isinstance(value, FunctionType | BuiltinFunctionType | type):
            parts = self._definition(value)
        else:
            parts = self._object(value)
        return str([self.text(part) for part in parts])

    def _object(self, value: Any) -> list[Any]:
        """The class and the state of an object, as a pickle would hold them."""
        reduce = cloudpickle.Pickler.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(_REDUCE_PROTOCOL)
        if isinstance(reduced, str):  # the name of a global, as of what functools.cache or Cython makes of a function
            return [type(value), *(self._definition(value) if hasattr(value, "__qualname__") else [reduced])]
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return [type(value), made, arguments, state, list(items or ()), list(pairs or ())]

    def _is_own(self, module: str) -> bool:
        """Whether a module is the user's; it is added to the own modules or to the packages."""
        top = module.partition(".")[0]
        places = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
        file = next((Path(place) for place in places if place and Path(place).is_file()), None)
        is_its_own = module == "__main__" or (is_own(file) if file else top not in sys.stdlib_module_names)
        if not is_its_own:
            self._modules.packages.add(top)
        elif file and module != "__main__":
            self._modules.add(file)
        return is_its_own

    def _definition(self, value: Any) -> list[Any]:
        """A function or class: its name, what it was made with, and, if it is the user's, what it holds."""
        name, module, code = value.__qualname__, getattr(value, "__module__", None) or "", getattr(value, "__code__", None)
        defined_in = value.__globals__.get("__name__") or "" if code else module  # decorators change `__module__`
        are_own = [self._is_own(home) for home in (module, defined_in)]
        loaded = sys.modules.get(module) if module != "__main__" else None
        imported = functools.reduce(lambda held, part: getattr(held, part, None), name.split("."), loaded)
        is_imported = imported is value and hasattr(loaded, "__file__")
        if isinstance(value, type):
            members = {key: member for key, member in vars(value).items() if key not in _NOT_MEMBERS and not is_imported}
            return [module, name, *([type(value), value.__bases__, members] if any(are_own) else ())]
        parts = [module, name, *(getattr(value, held, None) for held in ("__closure__", "__self__", "__wrapped__"))]
        if code is None or not any(are_own):
            return parts
        parts += [value.__defaults__, value.__kwdefaults__, vars(value)]
        named = {name: value.__globals__[name] for name in _names_of(code, _GLOBALS) if name in value.__globals__}
        if is_imported:
            return [*parts, {name: held for name, held in named.items() if isinstance(held, _PLAIN)}]
        lines = linecache.getlines(code.co_filename)
        imports = read("".join(lines).encode())[1] if lines else {f"{name}.*" for name in _names_of(code, {"IMPORT_NAME"})}
        self._modules.follow(imports, Path(code.co_filename))
        return [*parts, named, code]

    def _array(self, array: Any) -> str:
        form = f"array {array.shape}{array.dtype}"
        if self._arrays_by_form:
            return form
        flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
        count = max(1, _ARRAY_END_BYTES // max(1, array.itemsize))
        return f"{form} {hashlib.sha256(flat[:count].tobytes() + flat[-count:].tobytes()).hexdigest()}"


def _code_parts(code: CodeType) -> list[Any]:
    """Instructions without their positions; constants count where they are used, so that docstrings do not."""
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames)
    instructions = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    return [arguments, code.co_freevars, getattr(code, "co_exceptiontable", None), instructions]  # None: Python 3.10


def _names_of(code: CodeType, operations: set[str]) -> Iterator[str]:
    """The names that operations of code have, those of functions inside it too."""
    yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in operations)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant, operations)
