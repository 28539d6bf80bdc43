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
from typing import Any

from autofit.errors import UsageError
from autofit.records.places import Edits, read_text
from autofit.workload.own_modules import is_own
from autofit.workload.script import Script
from autofit.workload.script.marks import MARK, Marker, mark

# the user's files that this process has compiled, with their text as it was run
texts = dict[str, str]()


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
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        tree = ast.parse(text, file)
        if self._is_marked:
            tree = Marker(file, tree).visit(tree)
        return compile(tree, file, "exec", dont_inherit=True)

    def install(self) -> None:
        """Compile the user's modules so when they are imported, and open edited data files edited."""
        setattr(builtins, MARK, mark)
        loader = importlib.machinery.SourceFileLoader
        get_code = loader.get_code

        def own_code(self_: Any, name: str) -> Any:
            path = Path(self_.path).absolute()
            return self.compiled(str(path)) if is_own(path) else get_code(self_, name)

        loader.get_code = own_code  # type: ignore[assignment,method-assign]  # there is no other hook for code
        edited = {file: None for file in self._edits.files if not file.endswith(".py")}
        if edited:
            builtins.open = io.open = _opening(builtins.open, edited, self._edits)


def _opening(original: Any, files: Mapping[str, None], edits: Edits) -> Any:
    """Return `open` for which a configuration file has the text with the edits."""

    @functools.wraps(original)
    def open_edited(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = str(Path(file).absolute()) if isinstance(file, str | os.PathLike) else ""
        if path not in files or set(mode) & set("wax+"):
            return original(file, mode, *args, **kwargs)
        text = edits.apply(path, _read(original, path))
        return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)

    return open_edited


def _read(opener: Any, file: str) -> str:
    with opener(file, encoding="utf-8", newline="") as source:
        return str(source.read())


class AfterImport:
    """Calls functions when a module is about to be imported, and when it has been; or at once, if
    it was.
    """

    def __init__(self) -> None:
        self._before = dict[str, list[Callable[[], None]]]()
        self._after = dict[str, list[Callable[[Any], None]]]()
        self._sought = set[str]()
        sys.meta_path.insert(0, self)

    def add(
        self,
        name: str,
        after: Callable[[Any], None],
        before: Callable[[], None] | None = None,
    ) -> None:
        """Have functions called before and after the import of a module."""
        if name in sys.modules:
            after(sys.modules[name])
            return
        if before is not None:
            self._before.setdefault(name, []).append(before)
        self._after.setdefault(name, []).append(after)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as the other finders do, and have its functions called."""
        # other hooks of imports ask all finders, and this one a second time
        if name not in self._after or name in self._sought:
            return None
        self._sought.add(name)
        try:
            others = (finder for finder in sys.meta_path if finder is not self)
            found = (finder.find_spec(name, path, target) for finder in others)
            spec = next(filter(None, found), None)
        finally:
            self._sought.remove(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        # a module that is looked for may not be imported then: TensorFlow looks for Keras
        def exec_module(module: Any) -> None:
            for function in self._before.pop(name, []):
                function()
            execute(module)
            for look in self._after.pop(name, []):
                look(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


def run_as_main(script: Script, code: Code, options: list[str]) -> None:
    """Run a script to its end, as `python` runs it; `options` are added to its arguments."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]  # as Python sets it
    if script.module:
        sys.path.insert(0, str(Path.cwd()))
        spec = importlib.util.find_spec(script.module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{script.module}.__main__")
        if spec is None or spec.origin is None:
            raise UsageError(f"there is no module {script.module}", key="script")
        file = spec.origin
        main.__spec__ = spec
        main.__package__ = spec.parent
    else:
        file = script.file
        sys.path.insert(0, str(Path(file).parent))
        main.__spec__ = None
    main.__file__ = file
    sys.modules["__main__"] = main
    sys.argv = [file, *script.arguments, *options]
    code.install()
    exec(code.compiled(file), main.__dict__)
