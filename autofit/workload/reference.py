"""What a tuning file names: the user's functions, and environment variables; and the import of the
user's modules.
"""
# A script without `if __name__ == "__main__":` trains when it is imported. Each trial imports it,
# so it would train in each, and overwrite the model that it saved. While the user's modules are
# imported, the methods of a Keras model that train, that take long or that write files raise an
# error which names the line. Models of other libraries are left alone. What a library puts around
# these methods at import, as a tracker of experiments does to record each training, is taken away
# again: trials should not be recorded as trainings, and they run no callbacks of the user's either
# (see fit_options).

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from autofit.errors import UsageError
from autofit.workload.arguments import FUNCTION
from autofit.workload.own_modules import is_own

# of a value that is replaced in a text: a shorter one cannot be a secret, and occurs in common
# words
_LEAST_CHARACTERS = 4
# methods of a Keras model that must not run while a module is imported; trials call only the first
# three
_CALLED = ("fit", "evaluate", "predict")
_REFUSED = (*_CALLED, "save", "save_weights", "export")
_guarded_imports: list[Sequence[str]] = []  # those that run now, by their arguments
# descriptions of patches that imports of the user's modules made, and trials do not run
left_out = set[str]()


@dataclass(frozen=True)
class Reference:
    """A function that a YAML file names: `package.module:function`, or `path/to/file.py:function`
    relative to `folder`.
    """

    text: str
    folder: str = "."

    @property
    def path(
        self,
    ) -> Path | None:  # the Python file; None if the reference names a module
        file = self.text.rpartition(":")[0]
        return (Path(self.folder) / file).resolve() if file.endswith(".py") else None

    @property
    def module(self) -> str:  # the name under which the function's module is imported
        return self.path.stem if self.path else self.text.rpartition(":")[0]

    @property
    def name(self) -> str:
        return self.text.rpartition(":")[2]

    def validate(self) -> None:
        """Check that the function exists, without importing anything."""
        is_module = all(part.isidentifier() for part in self.module.split("."))
        if not self.name.isidentifier() or (self.path is None and not is_module):
            raise UsageError(f"{self.text!r} does not name a function; {FUNCTION}")
        if self.path is None:
            return
        if not self.path.is_file():
            raise UsageError(f"{self.text!r}: there is no file {self.path}")
        try:
            code = compile(
                self.path.read_bytes(), str(self.path), "exec", dont_inherit=True
            )
        except SyntaxError as error:
            raise UsageError(
                f"{self.text!r}: {self.path}:{error.lineno}: {error.msg}"
            ) from None
        except (OSError, ValueError, MemoryError, RecursionError) as error:
            # the last two, mostly without a text, for code that is nested too deeply
            reason = str(error) or type(error).__name__
            raise UsageError(
                f"{self.text!r}: {self.path} cannot be read: {reason}"
            ) from None
        # of a name that is assigned or imported, only importing the file shows whether it is a
        # function
        if self.name not in code.co_names and ("*",) not in code.co_consts:
            codes = (part for part in code.co_consts if isinstance(part, CodeType))
            # from Python 3.14 on, annotations are code, too
            defined = sorted({code.co_name for code in codes} - {"__annotate__"})
            near = f"; it defines {', '.join(defined)}" if defined else ""
            raise UsageError(
                f"{self.text!r}: {self.path} does not define {self.name}{near}"
            )

    def resolve(self) -> Callable[..., Any]:
        """Import the module, which may raise any error, and return the function."""
        path = self.path
        if path is not None and str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        with importing([str(path or self.module)]):
            module = importlib.import_module(self.module)
        if path is not None and Path(module.__file__ or "").resolve() != path:
            raise UsageError(
                f"{self.text!r}: Python uses another module named {self.module} "
                f"({module.__file__}); rename your file"
            )
        function = getattr(module, self.name, None)
        if callable(function):
            # callable() narrows it to a callable of unknown return type
            return function  # type: ignore[no-any-return]
        raise UsageError(
            f"{self.text!r}: {self.module} has no function {self.name} (found: "
            f"{type(function).__name__}). Name a function "
            "or class that creates the object, because each trial creates its own"
        )


@contextlib.contextmanager
def importing(argv: Sequence[str]) -> Iterator[None]:
    """Guard the import of the user's modules, which see `argv` as `sys.argv`; UsageError if one
    trains, saves or exits.
    """
    from unittest.mock import patch  # which Keras loads, too

    # heavy: must stay out of the parent, where only `autofit check` imports the user's modules
    import keras

    guards: Any = {name: _guard(name, getattr(keras.Model, name)) for name in _REFUSED}
    _guarded_imports.append(argv)
    try:
        with patch.object(sys, "argv", [*argv]), patch.multiple(keras.Model, **guards):
            yield
            for name in _CALLED:
                if (method := inspect.getattr_static(keras.Model, name)) is not guards[
                    name
                ]:
                    left_out.add(f"{_library_of(method)}'s patch of {name}")
    except SystemExit as error:
        where = _users_frame(traceback.extract_tb(error.__traceback__))
        raise _error(where, f"ends the program (SystemExit: {error.code})") from None
    finally:
        _guarded_imports.pop()


def _guard(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    # A plain function, as the method itself is: libraries refuse to patch other descriptors. A
    # library that did patch it holds the guard for Keras's method, and calls it after the import,
    # too.
    @functools.wraps(method)
    def guard(*args: Any, **kwargs: Any) -> Any:
        if not _guarded_imports:
            return method(*args, **kwargs)
        *callers, _ = traceback.extract_stack()
        raise _error(_users_frame(callers), f"calls {name} of a model")

    return guard


def _library_of(method: Any) -> str:
    # a decorated function has the `__module__` of what it wraps
    module = getattr(method, "__globals__", {}).get("__name__", type(method).__module__)
    return str(module).partition(".")[0]


def _users_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary:
    """Return the innermost frame of the user's files; that of a library if there is none."""
    own = [
        frame
        for frame in frames
        if (file := Path(frame.filename)).is_file() and is_own(file)
    ]
    return (own or frames)[-1]


def _error(where: traceback.FrameSummary, does: str) -> UsageError:
    return UsageError(
        f"{Path(where.filename).name}:{where.lineno} {does} when the file is imported, as it is in "
        "each trial. Put it under "
        '`if __name__ == "__main__":`'
    )


class Written(str):
    """A text with `${NAME}` as it is written in a file; `value` is the text or number that it
    stands for.
    """

    value: Any
    variables: dict[str, str]  # the text of each variable, by its value


def expanded(part: Any) -> Any:
    """Replace a `Written` by its value; in mappings and lists, do the same for each item."""
    if isinstance(part, dict):
        return {key: expanded(inner) for key, inner in part.items()}
    if isinstance(part, list):
        return [expanded(inner) for inner in part]
    return part.value if isinstance(part, Written) else part


def as_written(text: str, part: Any) -> str:
    """Replace in a text the value of each `Written` in `part`, which may be a secret, by what the
    file has.
    """
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            text = as_written(text, inner)
    if isinstance(part, Written):
        for value, written in {str(part.value): str(part), **part.variables}.items():
            if len(value) >= _LEAST_CHARACTERS:
                # a message may show a value as Python writes it
                for form in {value, repr(value)[1:-1]}:
                    text = text.replace(form, written)
    return text
