"""Values as text that is the same in every process: what a hash of functions, objects and arrays is taken of."""

from __future__ import annotations

import contextlib
import copyreg
import dis
import hashlib
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import IO, Any

import cloudpickle

from autofit.workload.fingerprint import modules, reachable, source_file
from autofit.workload.workload import is_plain_array

_PLAIN = (str, bytes, int, float, bool, tuple, Path)
_WRITTEN = (str, int, float, complex, bool, type(None), type(...))  # whose repr() tells them, in every process alike
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_DIGEST_BYTES = 1 << 20  # of each end of an array: enough to tell arrays apart, cheap on large ones
_REDUCED_PROTOCOL = 4  # above it objects may give buffers, which only a pickler can take
_CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, dict, type({}.keys()), type({}.values()), type({}.items()))
_NAMED = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# what a class has beside its members: dates and places, what its text tells, and what an ABC remembers of other classes
_NOT_MEMBERS = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}


class Canonical:
    """Values as text, the same in every process: mappings and sets sorted, code by what it says and reaches.

    A pickle would not do: it names functions that may have changed, and gives classes of `__main__` random names.
    """

    def __init__(self, walk: reachable.Walk, packages: set[str], *, arrays_by_form: bool) -> None:
        self._walk = walk
        self._packages = packages
        self._arrays_by_form = arrays_by_form
        self._known: dict[int, tuple[Any, str]] = {}  # with the objects, so that no other takes the place of one

    def text(self, value: Any) -> str:
        """A value as text."""
        kind = type(value)
        if kind in _WRITTEN:
            return repr(value)
        if kind is bytes:
            return f"bytes {hashlib.sha256(value).hexdigest()}"
        if is_plain_array(value):
            return _array(value, by_form=self._arrays_by_form)
        if id(value) not in self._known:
            self._known[id(value)] = value, f"again {kind.__qualname__}"  # stands for itself in what it holds
            text = self._composed(value)
            self._known[id(value)] = value, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        return self._known[id(value)][1]

    def _composed(self, value: Any) -> str:
        """A value that may hold others."""
        if isinstance(value, MappingProxyType):
            value = dict(value)
        if type(value) in _CONTAINERS:
            return self._container(value)
        told: Callable[[Any], str]
        kinds: Any
        for kinds, told in (
            (ModuleType, self._module),
            (CodeType, self._code),
            ((*_FUNCTIONS, type), self._function),
            ((property, staticmethod, classmethod), self._descriptor),
        ):
            if isinstance(value, kinds):
                return told(value)
        return self._instance(value)

    def _container(self, value: Any) -> str:
        if isinstance(value, dict):
            parts = sorted(f"{self.text(key)}:{self.text(of_key)}" for key, of_key in value.items())
        else:
            parts = [self.text(part) for part in value]  # of a dict's keys, values or items in their order
        return f"{type(value).__name__}[{','.join(sorted(parts) if isinstance(value, set | frozenset) else parts)}]"

    def _code(self, code: CodeType) -> str:
        return self.text([code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars])

    def _descriptor(self, descriptor: Any) -> str:
        functions = [getattr(descriptor, name, None) for name in ("fget", "fset", "fdel", "__func__")]
        return f"{type(descriptor).__name__} {self.text(functions)}"

    def _instance(self, value: Any) -> str:
        """An object by its class, and by what a pickle would hold of it."""
        kind = self.text(type(value))
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(_REDUCED_PROTOCOL)
        except RecursionError:
            raise
        except Exception:  # cloudpickle knows more kinds; where it does not, it says what is wrong
            return f"{kind} {pickled(value, arrays_by_form=self._arrays_by_form)}"
        if isinstance(reduced, str):  # the name of a global, as of what functools.cache or Cython makes of a function
            return f"{kind} {self._function(value) if hasattr(value, '__qualname__') else reduced}"
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        held = [made, arguments, state, list(items or ()), list(pairs or ())]
        return f"{kind} {self.text(held)}"

    def _module(self, module: ModuleType) -> str:
        path = Path(getattr(module, "__file__", None) or "")
        if path.is_file() and modules.is_own(path):
            self._walk.enter(path, None)
        else:
            self._packages.add(module.__name__.partition(".")[0])
        return f"module {module.__name__}"

    def _function(self, function: Any) -> str:
        """A function, method or class; one that is not imported by its name takes with it whatever it holds and names."""
        name, module = function.__qualname__, getattr(function, "__module__", None) or ""
        is_own, path = _origin(function, module)
        if not is_own:
            self._packages.add(module.partition(".")[0])
            return f"{module} {name} {'' if isinstance(function, type) else self._made_with(function)}"
        if path is not None:
            for reached in _names(name, function):
                self._walk.enter(path, reached, imported=module != "__main__")
        is_imported = module != "__main__" and "<locals>" not in name and path is not None
        held = self._members if isinstance(function, type) else self._held
        return f"{name} {held(function, is_imported)}"

    def _members(self, kind: type, is_imported: bool) -> str:
        """What a class takes with it."""
        bases = [type(kind), *kind.__bases__]
        members = {} if is_imported else {key: value for key, value in vars(kind).items() if key not in _NOT_MEMBERS}
        return self.text([bases, members])

    def _made_with(self, function: Any) -> str:
        """What a function or method was made with."""
        cells = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
        return self.text([cells, getattr(function, "__self__", None), getattr(function, "__wrapped__", None)])

    def _held(self, function: Any, is_imported: bool) -> str:
        """What a function or method says, and takes with it."""
        made_with, code = self._made_with(function), getattr(function, "__code__", None)
        if code is None:
            return made_with
        named = {key: function.__globals__[key] for key in _globals_of(code) if key in function.__globals__}
        if is_imported:
            named = {key: value for key, value in named.items() if isinstance(value, _PLAIN)}
        try:
            said = source_file.of_text(inspect.getsource(code))
        except (OSError, TypeError):
            said = self.text(code)
        return f"{made_with} {said} {self.text([function.__defaults__, function.__kwdefaults__, vars(function), named])}"


def _origin(function: Any, module: str) -> tuple[bool, Path | None]:
    """Whether a function or class is the user's, and the file that defines it: none for what is, as in a notebook."""
    path = None
    with contextlib.suppress(OSError, TypeError):
        path = Path(inspect.getsourcefile(function) or "")
    if path is None or not path.is_file():
        loaded = sys.modules.get(module) if module != "__main__" else None
        path = Path(getattr(loaded, "__file__", None) or "")
        if not path.is_file():
            is_written = isinstance(function, type) or hasattr(function, "__code__")
            return is_written and loaded is None, None
    is_own = modules.is_own(path)
    return is_own or module == "__main__", path if is_own else None


def _names(name: str, function: Any) -> Iterable[str]:
    """The names at the top of its file from which all that a function may reach can be followed."""
    outermost = name.partition(".")[0]
    code = getattr(function, "__code__", None)
    return (outermost,) if outermost.isidentifier() else _globals_of(code) if code else ()


def _globals_of(code: CodeType) -> Iterator[str]:
    """The names of the globals that code reads, that of the functions and comprehensions inside it too."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _NAMED:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def _array(array: Any, *, by_form: bool) -> str:
    form = f"array {array.shape}{array.dtype}"
    if by_form:
        return form
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
    count = max(1, _DIGEST_BYTES // max(1, array.itemsize))
    ends = flat[:count].tobytes() + flat[-count:].tobytes()
    return f"{form} {hashlib.sha256(ends).hexdigest()}"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Pickles for hashing only."""

    def __init__(self, file: IO[bytes], *, arrays_by_form: bool) -> None:
        super().__init__(file)
        self._arrays_by_form = arrays_by_form

    def persistent_id(self, obj: Any) -> str | None:
        return _array(obj, by_form=self._arrays_by_form) if is_plain_array(obj) else None


def pickled(value: Any, *, arrays_by_form: bool) -> str:
    """A hash of what cloudpickle makes of a value, arrays told as elsewhere.

    Raises:
        PicklingError, TypeError: it cannot be pickled.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, arrays_by_form=arrays_by_form).dump(value)
    return hashlib.sha256(buffer.getvalue()).hexdigest()
