"""Import the user's modules without running the training that they contain.

A script without `if __name__ == "__main__":` trains when it is imported. Each trial imports it, so it would train in each,
and overwrite the model that it saved. While the user's modules are imported, the methods of a Keras model that train, that
take long or that write files raise an error which names the line. The models of other libraries are not concerned.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from autofit.errors import UsageError

_REFUSED = {
    "fit": "trains",
    "evaluate": "evaluates a model",
    "predict": "predicts",
    "save": "saves a model",
    "save_weights": "saves weights",
    "export": "exports a model",
}
_NOT_USERS = (  # files whose frames are not the user's code
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]),
    "<frozen",
)


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
        users = [frame for frame in frames if not frame.filename.startswith(_NOT_USERS)]
        where = users[-1] if users else frames[-1]
        raise _error(where.filename, where.lineno or 0, f"ends the program (SystemExit: {error.code})") from None
    finally:
        sys.argv = own_argv


class _Guard(MetaPathFinder):
    """Replaces the refused methods of `keras.Model`, at once or, if Keras is not loaded yet, when a module imports it."""

    def __init__(self) -> None:
        self._model: Any = None
        self._methods: dict[str, Any] = {}  # those that the class defines itself; it inherits the others

    def __enter__(self) -> None:
        if "keras" in sys.modules:
            self._replace()
        else:
            sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        for name in _REFUSED if self._model is not None else ():
            if name in self._methods:
                setattr(self._model, name, self._methods[name])
            else:
                delattr(self._model, name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_replace(module: Any) -> None:
                execute(module)
                self._replace()

            loader.exec_module = execute_and_replace
        return spec

    def _replace(self) -> None:
        self._model = getattr(sys.modules["keras"], "Model", None)
        for name, does in _REFUSED.items() if self._model is not None else ():
            if name in vars(self._model):
                self._methods[name] = vars(self._model)[name]
            setattr(self._model, name, _refusing(does))


def _refusing(does: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        caller = inspect.stack(0)[1]
        raise _error(caller.filename, caller.lineno, does)

    return refuse


def _error(file: str, line: int, does: str) -> UsageError:
    return UsageError(
        f"{Path(file).name}:{line} {does} when the file is imported, as it is in each trial. Put it under "
        '`if __name__ == "__main__":`'
    )
