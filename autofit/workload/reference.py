"""What a tuning file names: the user's functions, and environment variables."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.workload.arguments import FUNCTION
from autofit.workload.importing import importing

_LEAST_CHARACTERS = 4  # of a value that is replaced in a text: a shorter one cannot be a secret, and occurs in common words


@dataclass(frozen=True)
class Reference:
    """A function that a YAML file names: `package.module:function`, or `path/to/file.py:function` relative to `folder`."""

    text: str
    folder: str = "."

    @property
    def path(self) -> Path | None:
        """The Python file; None if the reference names a module."""
        file = self.text.rpartition(":")[0]
        return (Path(self.folder) / file).resolve() if file.endswith(".py") else None

    @property
    def module(self) -> str:
        """The name under which the function's module is imported."""
        return self.path.stem if self.path else self.text.rpartition(":")[0]

    @property
    def name(self) -> str:
        return self.text.rpartition(":")[2]

    def validate(self) -> None:
        """Check that the function exists, without importing anything."""
        if not self.module or not self.name.isidentifier():
            raise UsageError(f"{self.text!r} does not name a function; {FUNCTION}")
        if self.path is None:
            return
        if not self.path.is_file():
            raise UsageError(f"{self.text!r}: there is no file {self.path}")
        try:
            module = ast.parse(self.path.read_bytes())
        except SyntaxError as error:
            raise UsageError(f"{self.text!r}: {self.path}:{error.lineno}: {error.msg}") from None
        defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        # of a name that is assigned or imported, only importing the file shows whether it is a function
        others = [node for node in ast.walk(module) if isinstance(node, ast.Name | ast.alias)]
        if not {self.name, "*"} & (
            defined | {getattr(node, key, None) for node in others for key in ("id", "name", "asname")}
        ):
            near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
            raise UsageError(f"{self.text!r}: {self.path} does not define {self.name}{near}")

    def resolve(self) -> Callable[..., Any]:
        """Import the module, which may raise any error, and return the function."""
        path = self.path
        if path is not None and str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        if path is None and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise UsageError(
                f"{self.text!r}: there is no module {self.module} on the search path. Install it, or name its file instead"
            )
        with importing([str(path or self.module)]):
            module = importlib.import_module(self.module)
        if path is not None and Path(module.__file__ or "").resolve() != path:
            raise UsageError(
                f"{self.text!r}: Python uses another module named {self.module} ({module.__file__}); rename your file"
            )
        if not hasattr(module, self.name):
            raise UsageError(f"{self.text!r}: {self.module} has no function {self.name}")
        function = getattr(module, self.name)
        if not callable(function):
            raise UsageError(
                f"{self.text!r}: {self.name} is an object of type {type(function).__name__}, not a function. Name a "
                "function or class that creates the object, because each trial creates its own"
            )
        return function  # type: ignore[no-any-return]  # callable() narrows it to a callable of unknown return type


class Written(str):
    """A text with `${NAME}` as it is written in a file; `value` is the text or number that it stands for."""

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
    """Replace in a text the value of each `Written` in `part`, which may be a secret, by what the file has."""
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            text = as_written(text, inner)
    if isinstance(part, Written):
        for value, written in {str(part.value): str(part), **part.variables}.items():
            for form in {value, repr(value)[1:-1]}:  # a message may show a value as Python writes it
                text = text.replace(form, written) if len(value) >= _LEAST_CHARACTERS else text
    return text
