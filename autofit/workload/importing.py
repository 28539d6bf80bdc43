"""Import the user's modules without running the training that they contain."""
# A script without `if __name__ == "__main__":` trains when it is imported. Each trial imports it, so it would train in
# each, and overwrite the model that it saved. While the user's modules are imported, the methods of a Keras model that
# train, that take long or that write files raise an error which names the line. Models of other libraries are left alone.

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
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
    own_argv, guard = sys.argv, _Guard()
    sys.argv = list(argv)
    try:
        with guard:
            yield
    except SystemExit as error:
        frames = traceback.extract_tb(error.__traceback__)
        *_, where = frames[-1], *(each for each in frames if Path(each.filename).is_file() and is_own(Path(each.filename)))
        raise _error(where.filename, where.lineno or 0, f"ends the program (SystemExit: {error.code})") from None
    finally:
        sys.argv = own_argv


class _Guard(MetaPathFinder):
    """Replaces the refused methods of `keras.Model`, at once or, if Keras is not loaded yet, when a module imports it."""

    def __init__(self) -> None:
        self._model: Any = None
        self._methods: dict[str, Any] = {}  # None for those that the class inherits

    def __enter__(self) -> None:
        if "keras" in sys.modules:
            self._replace()
        else:
            sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        for name, method in self._methods.items():
            if method is None:
                delattr(self._model, name)
            else:
                setattr(self._model, name, method)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "keras":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._execute, spec.loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        self._replace()

    def _replace(self) -> None:
        self._model = getattr(sys.modules["keras"], "Model", None)
        for name, does in _REFUSED.items() if self._model is not None else ():
            self._methods[name] = vars(self._model).get(name)
            setattr(self._model, name, staticmethod(functools.partial(_refuse, does)))


def _refuse(does: str, *_: Any, **__: Any) -> None:
    caller = inspect.stack(0)[1]
    raise _error(caller.filename, caller.lineno, does)


def _error(file: str, line: int, does: str) -> UsageError:
    return UsageError(
        f"{Path(file).name}:{line} {does} when the file is imported, as it is in each trial. Put it under "
        '`if __name__ == "__main__":`'
    )
