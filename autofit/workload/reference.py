"""References: functions that a YAML file names."""

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
        module, _, name = self.text.rpartition(":")
        if not module or not name.isidentifier():
            raise UsageError(f"{self.text!r} does not name a function; {FUNCTION}")
        if self.path is None:
            return
        if not self.path.is_file():
            raise UsageError(f"{self.text!r}: there is no file {self.path}")
        try:
            module_tree = ast.parse(self.path.read_bytes())
        except SyntaxError as error:
            raise UsageError(f"{self.text!r}: {self.path}:{error.lineno}: {error.msg}") from None
        defined = {node.name for node in module_tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        # of a name that is assigned or imported, only importing the file shows whether it is a function
        others = [node for node in ast.walk(module_tree) if isinstance(node, ast.Name | ast.alias)]
        if not {name, "*"} & (defined | {getattr(node, key, None) for node in others for key in ("id", "name", "asname")}):
            near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
            raise UsageError(f"{self.text!r}: {self.path} does not define {name}{near}")

    def resolve(self) -> Callable[..., Any]:
        """Import the module, which may raise any error, and return the function."""
        if self.path is not None:
            if str(self.path.parent) not in sys.path:
                sys.path.insert(0, str(self.path.parent))
        elif importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise UsageError(
                f"{self.text!r}: there is no module {self.module} on the search path. Install it, or name its file instead"
            )
        with importing([str(self.path or self.module)]):
            module = importlib.import_module(self.module)
        if self.path is not None and Path(module.__file__ or "").resolve() != self.path:
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
