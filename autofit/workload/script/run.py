"""Run a script as `__main__`, its files marked or edited, and act on libraries once it imports
them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.machinery
import importlib.util
import io
import linecache
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from autofit.errors import UsageError
from autofit.records.places import Edits, read_text
from autofit.workload.own_modules import is_own
from autofit.workload.script import Script
from autofit.workload.script.marks import MARK, Marker, mark, texts


class Code:
    """Compiles the user's files with edits, and in the first run with marks."""

    def __init__(self, edits: Edits, *, is_marked: bool) -> None:
        self._edits = edits
        self._is_marked = is_marked

    def compiled(self, file: str) -> types.CodeType:
        """Return the code of a file."""
        text = self._edits.apply(file, read_text(file))
        texts[file] = text
        # AutoGraph reads the source of functions there, and tracebacks their lines
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)
        tree = ast.parse(text, file)
        if self._is_marked:
            tree = Marker(file, tree).visit(tree)
        return compile(tree, file, "exec", dont_inherit=True)

    def install(self) -> None:
        """Compile the user's modules so when they are imported, and open edited files edited."""
        setattr(builtins, MARK, mark)
        loader = importlib.machinery.SourceFileLoader
        get_code = loader.get_code

        def own_code(self_: Any, name: str) -> Any:
            path = Path(self_.path).absolute()
            if not is_own(path):
                return get_code(self_, name)
            return self.compiled(str(path))

        # there is no other hook for code
        loader.get_code = own_code  # type: ignore[assignment,method-assign]
        edited = {
            file: self._edits.apply(file, read_text(file))
            for file in self._edits.files
            if not file.endswith(".py")
        }
        if edited:
            builtins.open = io.open = _opening(builtins.open, edited)


def _opening(original: Any, edited: Mapping[str, str]) -> Any:
    """Return `open` for which configuration files have other texts."""

    @functools.wraps(original)
    def open_edited(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(file, str | os.PathLike)
        text = edited.get(str(Path(file).absolute())) if is_path else None
        if text is None or set(mode) & set("wax+"):
            return original(file, mode, *args, **kwargs)
        if "b" in mode:
            return io.BytesIO(text.encode())
        return io.StringIO(text)

    return open_edited


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's files that a frame is below."""
    while frame is not None and frame.f_code.co_filename not in texts:
        frame = frame.f_back
    return frame


def line_at(frame: FrameType | None) -> str:
    """Return the line of the user's files that a frame is below, such as "train.py:91"."""
    frame = users_frame(frame)
    if frame is None:
        return ""
    file = Path(frame.f_code.co_filename)
    return f"{file.name}:{frame.f_lineno}"


class AfterImport:
    """Calls functions when a module is about to be imported, and when it has been; or at once, if
    it was.
    """

    def __init__(self) -> None:
        self._waiting = dict[
            str, list[tuple[Callable[[], None], Callable[[Any], None]]]
        ]()
        self._sought = set[str]()
        sys.meta_path.insert(0, self)

    def add(
        self,
        name: str,
        after: Callable[[Any], None] = lambda _: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Have functions called before and after the import of a module."""
        if name in sys.modules:
            after(sys.modules[name])
        else:
            self._waiting.setdefault(name, []).append((before, after))

    def wrap(self, name: str, function: str, wrapping: Callable[[Any], Any]) -> None:
        """Have `wrapping` make what takes the place of a function, such as "Dataset.batch"."""

        def after(module: Any) -> None:
            *owners, last = function.split(".")
            owner = functools.reduce(getattr, owners, module)
            setattr(owner, last, wrapping(getattr(owner, last)))

        self.add(name, after)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as the other finders do, and have its functions called."""
        # other hooks of imports ask all finders, and this one a second time
        if name not in self._waiting or name in self._sought:
            return None
        self._sought.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._sought.remove(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        # a module that is looked for may not be imported then: TensorFlow looks for Keras
        def exec_module(module: Any) -> None:
            waiting = self._waiting.pop(name, [])
            for before, _ in waiting:
                before()
            execute(module)
            for _, after in waiting:
                after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


def run_as_main(script: Script, code: Code, options: list[str]) -> None:
    """Run a script to its end, as `python` runs it; `options` are added to its arguments."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]  # as Python sets it
    main.__spec__ = None
    file = script.file
    # that of a module is the working folder
    folder = Path(file).parent.absolute()
    sys.path.insert(0, str(folder))
    if script.module:
        spec = importlib.util.find_spec(script.module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{script.module}.__main__")
        if spec is None or spec.origin is None:
            raise UsageError(f"there is no module {script.module}", key="script")
        file = spec.origin
        main.__spec__ = spec
        main.__package__ = spec.parent
    main.__file__ = file
    sys.modules["__main__"] = main
    sys.argv = [file, *script.arguments, *options]
    code.install()
    exec(code.compiled(file), main.__dict__)
