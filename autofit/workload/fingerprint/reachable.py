"""What a function is made of: the statements of its file, and of the files that it imports, which it depends on.

Nothing is imported and nothing is run. Comments, blank lines, docstrings, dates and folders do not count, nor does what the
function does not reach: so that a hash of it changes where the function may do something else, and hardly ever otherwise.
What a file does when it is imported counts for whoever imports it. Files of the standard library and of installed packages
are left out; their versions are told elsewhere.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autofit.workload.fingerprint.modules import Finder, Module, is_own, package_of, tops_of
from autofit.workload.fingerprint.source_file import SourceFile, imports_of, nodes_of, read, written_out

_ANY_NAME = {"globals", "eval", "exec"}  # what calls one of these may reach whatever is in its file
_IMPORTERS = {"import_module", "__import__"}
_ANY_CLASS = {"__init_subclass__", "__subclasses__"}  # what uses one of these may reach whatever is derived


@dataclass(frozen=True)
class Reached:
    """What was reached: `text` of the statements, in a form without layout, and the installed packages they import."""

    text: str
    packages: frozenset[str]


class Walk:
    """Follows names from statement to statement, and imports from file to file; a file is read once."""

    def __init__(self) -> None:
        self._files: dict[Path, SourceFile] = {}
        self._taken: dict[Path, set[int]] = {}
        self._imported: set[Path] = set()
        self._roots: list[Path] = []
        self._packages: set[str] = set()
        self._finder = Finder()
        self._pending: list[tuple[Path, Iterable[str] | None]] = []  # to be imported, with the names wanted
        self._takes_classes = False

    def enter(self, path: Path, name: str | None, *, imported: bool = True) -> None:
        """Reach a function or class of a file.

        Args:
            path: the file.
            name: of the function or class, at the top of the file; None for everything in it.
            imported: whether the file will be imported, so that what stands at its top runs; what is pickled by value
                (functions of `__main__`) runs without it.
        """
        path = path.resolve()
        self._roots += [folder for folder in tops_of(path) if folder not in self._roots]
        self._take(path, None if name is None else (name,), imported=imported)
        while self._pending:
            self._take(*self._pending.pop(), imported=True)

    def reached(self) -> Reached:
        """All that was reached, file by file in the order of their names."""
        parts = []
        for path in sorted((path for path in self._files if self._taken[path]), key=lambda path: (path.name, path)):
            parts += [path.name, *(self._files[path].text(place) for place in sorted(self._taken[path]))]
        return Reached("\n".join(parts), frozenset(self._packages - set(sys.stdlib_module_names)))

    def _take(self, path: Path, names: Iterable[str] | None, *, imported: bool) -> None:
        """Take what the names are bound to, everything where they are None, and what runs when the file is imported."""
        if path not in self._files:
            self._files[path], self._taken[path] = read(path), set()
        file = self._files[path]
        everything = range(len(file.body))
        wanted: list[int] = [] if names is not None and file.is_python else list(everything)
        for name in names or ():
            wanted += file.bound.get(name) or [*file.stars, *file.bound.get("__getattr__", ())]
        if imported and path not in self._imported:
            wanted += self._import(path)
        while wanted:
            place = wanted.pop()
            if place in self._taken[path]:
                continue
            self._taken[path].add(place)
            for node in nodes_of(file.body[place]):
                if isinstance(node, ast.Name):
                    wanted += everything if node.id in _ANY_NAME else file.bound.get(node.id, file.stars)
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    self._follow(node, path, reached=True)
                elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTERS:
                    self._follow_call(node, path)
                elif getattr(node, "name", getattr(node, "attr", None)) in _ANY_CLASS:
                    self._take_classes()

    def _import(self, path: Path) -> list[int]:
        """What runs when a file is imported; goes on to the packages that it is in, and to what it imports."""
        self._imported.add(path)
        self._pending += [(package / "__init__.py", ()) for package in path.parents[: len(package_of(path))]]
        file = self._files[path]
        for statement in file.imports:
            self._follow(statement, path, reached=False)
        return file.effects + [place for name in file.derived if self._takes_classes for place in file.bound[name]]

    def _take_classes(self) -> None:
        """Take all derived classes of the files that are imported, now and later."""
        if not self._takes_classes:
            self._takes_classes = True
            self._pending += [(path, self._files[path].derived) for path in self._imported]

    def _follow(self, node: ast.Import | ast.ImportFrom, path: Path, *, reached: bool) -> None:
        """Go on to the files that a statement imports; where it is not reached itself, for what importing them does."""
        for parts, names in imports_of(node):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[min(node.level, len(path.parents)) - 1]
                package = folder / "__init__.py"
                found = self._finder.inside(Module(package if package.is_file() else None, (folder,)), parts)
            else:
                found = self._finder.find(parts, dict.fromkeys((*self._files[path].tops, *self._roots)))
            if found is None:
                self._packages |= {parts[0]} if reached and parts and not getattr(node, "level", 0) else set()
                continue
            files = [found.file] if names is not None else [*found.above, found.file]
            below = [self._finder.below(name, found.folders) for name in names or ()]
            whole = names is None or "*" in names
            for file in filter(None, files):
                self._pending.append((file, () if not reached else None if whole else names))
            for module in below:
                if module is not None and module.file is not None:
                    self._pending.append((module.file, None if reached else ()))

    def _follow_call(self, call: ast.Call, path: Path) -> None:
        """Go on to the modules that a call may import: to all whose names begin as far as its argument is written out."""
        name, is_whole = written_out(call.args[0]) if call.args else ("", False)
        package = next((written_out(keyword.value)[0] for keyword in call.keywords if keyword.arg == "package"), "")
        name = package + name if name.startswith(".") else name
        *above, begin = name.lstrip(".").split(".")
        roots = [*self._files[path].tops, *self._roots]
        if not name or name.startswith("."):  # relative, or not written out at all: taken for one of its neighbours
            up = max(1, len(name) - len(name.lstrip(".")))
            parent = self._finder.inside(Module(None, (path.parents[min(up, len(path.parents)) - 1],)), above)
        elif above:
            parent = self._finder.find(above, roots)
        else:
            parent = Module(None, (*roots, *filter(is_own, map(Path, sys.path))))
        for folder in parent.folders if parent is not None else ():
            stems = {entry.partition(".")[0] for entry in self._finder.names_in(folder) if entry.startswith(begin)}
            for stem in [begin] if is_whole else sorted(stems):
                module = self._finder.below(stem, [folder])
                if module is not None and module.file:
                    self._pending.append((module.file, None))
