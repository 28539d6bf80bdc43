"""Import the user's modules without running the training that they contain."""
# A script without `if __name__ == "__main__":` trains when it is imported. Each trial imports it, so it would train in
# each, and overwrite the model that it saved. While the user's modules are imported, the methods of a Keras model that
# train, that take long or that write files raise an error which names the line. Models of other libraries are left alone.

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.workload.own_modules import is_own

_REFUSED = {
    "fit": "trains",
    "evaluate": "evaluates a model",
    "predict": "predicts",
    "save": "saves a model",
    "save_weights": "saves weights",
    "export": "exports a model",
}


@contextlib.contextmanager
def importing(argv: Sequence[str]) -> Iterator[None]:
    """Guard the import of the user's modules, which see `argv` as `sys.argv`; UsageError if one trains, saves or exits."""
    own_argv, sys.argv = sys.argv, list(argv)
    try:
        with _refusing():
            yield
    except SystemExit as error:
        frames = traceback.extract_tb(error.__traceback__)
        *_, where = frames[-1], *(each for each in frames if Path(each.filename).is_file() and is_own(Path(each.filename)))
        raise _error(where.filename, where.lineno or 0, f"ends the program (SystemExit: {error.code})") from None
    finally:
        sys.argv = own_argv


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Replace the refused methods of `keras.Model`, at once or, if Keras is not loaded yet, after it is imported."""
    original, replaced = builtins.__import__, dict[str, Any]()  # None for a method that the class inherits
    model: Any = None

    def replace() -> None:
        nonlocal model
        model = model or getattr(sys.modules.get("keras"), "Model", None)
        if model is not None and not replaced:
            replaced.update((name, vars(model).get(name)) for name in _REFUSED)
            for name, does in _REFUSED.items():
                setattr(model, name, staticmethod(functools.partial(_refuse, does)))

    def import_and_replace(*arguments: Any, **named: Any) -> Any:
        module = original(*arguments, **named)
        replace()
        return module

    replace()
    builtins.__import__ = import_and_replace
    try:
        yield
    finally:
        builtins.__import__ = original
        for name, method in replaced.items():
            if method is None:
                delattr(model, name)
            else:
                setattr(model, name, method)


def _refuse(does: str, *_: Any, **__: Any) -> None:
    caller = inspect.stack(0)[1]
    raise _error(caller.filename, caller.lineno, does)


def _error(file: str, line: int, does: str) -> UsageError:
    return UsageError(
        f"{Path(file).name}:{line} {does} when the file is imported, as it is in each trial. Put it under "
        '`if __name__ == "__main__":`'
    )
