"""A function named in a YAML file."""

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


@dataclass(frozen=True)
class Reference:
    """A function named in a YAML file: `package.module:function`, or `path/to/file.py:function` relative to `folder`."""

    text: str
    folder: str = "."

    @property
    def path(self) -> Path | None:
        """The Python file that is meant, or None where a module is."""
        place = self.text.rpartition(":")[0]
        return (Path(self.folder) / place).resolve() if place.endswith(".py") else None

    @property
    def module(self) -> str:
        """The name under which the function's module is imported."""
        return self.path.stem if self.path else self.text.rpartition(":")[0]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.text.rpartition(":")[2]

    def check(self) -> None:
        """Look for what can be missed without importing anything.

        Raises:
            UsageError: the text is no reference, the file is not there, or the file does not define the name.
        """
        place, _, name = self.text.rpartition(":")
        if not place or not name.isidentifier():
            raise UsageError(f"{self.text!r} is neither path/to/file.py:function nor package.module:function")
        if self.path is None:
            return
        if not self.path.is_file():
            raise UsageError(f"{self.text!r}: there is no file {self.path}")
        try:
            body = ast.parse(self.path.read_bytes()).body
        except SyntaxError as error:
            raise UsageError(f"{self.text!r}: {self.path}:{error.lineno}: {error.msg}") from None
        defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if name not in defined and not _may_define_otherwise(body, name):
            near = f"; it defines {', '.join(sorted(defined))}" if defined else ""
            raise UsageError(f"{self.text!r}: {self.path} does not define {name}{near}")

    def resolve(self) -> Callable[..., Any]:
        """Import the module and return the function.

        Raises:
            UsageError: there is no such module or no such function in it.
            Exception: whatever the module raises while it is imported.
        """
        if self.path is not None:
            if str(self.path.parent) not in sys.path:
                sys.path.insert(0, str(self.path.parent))
        elif importlib.util.find_spec(self.module.partition(".")[0]) is None:
            raise UsageError(f"{self.text!r}: there is no module {self.module}; it must be importable from here")
        module = importlib.import_module(self.module)
        if self.path is not None and Path(module.__file__ or "").resolve() != self.path:
            raise UsageError(
                f"{self.text!r}: another module named {self.module} is in use ({module.__file__}); rename the file"
            )
        found = getattr(module, self.name, None)
        if not callable(found):
            raise UsageError(f"{self.text!r}: {self.module} has no function {self.name}")
        return found  # type: ignore[no-any-return]  # callable() narrows it to a callable of unknown return type


def _may_define_otherwise(body: list[ast.stmt], name: str) -> bool:
    """Whether the name is assigned or imported at the top of a file, in which case only importing it can tell."""
    names = {n.id for stmt in body for n in ast.walk(stmt) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imports = [a for stmt in body for a in getattr(stmt, "names", [])]
    return name in names or any(
        getattr(a, "asname", None) == name or getattr(a, "name", "") in (name, "*") for a in imports
    )
