"""What a function is made of: the statements of its file, and of the files that it imports, which it depends on.

Nothing is imported and nothing is run. Comments, blank lines, docstrings, dates and folders do not count, nor does what the
function does not reach: so that a hash of it changes where the function may do something else, and hardly ever otherwise.
What a file does when it is imported counts for whoever imports it. Files of the standard library and of installed packages
are left out; their versions are told elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

_INSTALLED = (
    *{Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib")},
    Path(__file__).resolve().parent,  # autofit itself, which may be installed from a checkout
)
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")  # in the order in which Python looks for them
_ANY_NAME = {"globals", "eval", "exec"}  # what calls one of these may reach whatever is in its file
_IMPORTERS = {"import_module", "__import__"}
_ANY_CLASS = {"__init_subclass__", "__subclasses__"}  # what uses one of these may reach whatever is derived


@dataclass(frozen=True)
class Reached:
    """What was reached: `text` of the statements, in a form without layout, and the installed packages they import."""

    text: str
    packages: frozenset[str]


def of_text(text: str) -> str:
    """Python text without its layout, comments and docstrings; as it is where it is not Python."""
    tree = _parsed(textwrap.dedent(text))
    return text if tree is None else _plain(tree)


def file_of(module: str) -> Path | None:
    """The file of a module that is not installed, by its dotted name; None where there is none, or it is installed."""
    found = Walk().find(module.split("."), ())
    return found.file if found is not None else None


@functools.cache
def is_own(path: Path) -> bool:
    """Whether a file or folder is neither of the standard library nor of an installed package."""
    whole = path.resolve()
    return not any(whole.is_relative_to(folder) for folder in _INSTALLED) and not _INSTALLED_FOLDERS & set(whole.parts)


@dataclass(frozen=True)
class _Module:
    """Where a module lies: its file (None: a package without `__init__.py`), and the folders of what is below it."""

    file: Path | None
    folders: tuple[Path, ...] = ()
    above: tuple[Path, ...] = ()
    """The files of the packages that it is in."""


class Walk:
    """Follows names from statement to statement, and imports from file to file; a file is read once."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}
        self._taken: dict[Path, set[int]] = {}
        self._imported: set[Path] = set()
        self._roots: list[Path] = []
        self._packages: set[str] = set()
        self._specs: dict[str, ModuleSpec | None] = {}
        self._listed: dict[Path, frozenset[str]] = {}
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
        self._roots += [folder for folder in _tops(path) if folder not in self._roots]
        self._take(path, None if name is None else (name,), imported=imported)
        while self._pending:
            self._take(*self._pending.pop(), imported=True)

    def reached(self) -> Reached:
        """All that was reached, file by file in the order of their names."""
        parts = []
        for path in sorted((path for path in self._files if self._taken[path]), key=lambda path: (path.name, path)):
            body = self._files[path].body
            parts += [path.name, *(ast.dump(body[place]) for place in sorted(self._taken[path]))]
        return Reached("\n".join(parts), frozenset(self._packages - set(sys.stdlib_module_names)))

    def find(self, parts: Sequence[str], roots: Iterable[Path]) -> _Module | None:
        """A module of the user's, by its dotted name in parts; None where there is none, or it is installed.

        Args:
            parts: of the name, at least one.
            roots: folders to look in before Python's own search path.
        """
        found = self._top(parts[0], roots)
        return found and self._inside(found, parts[1:])

    def _take(self, path: Path, names: Iterable[str] | None, *, imported: bool) -> None:
        """Take what the names are bound to, everything where they are None, and what runs when the file is imported."""
        if path not in self._files:
            self._files[path], self._taken[path] = _File(path), set()
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
            for node in _nodes(file.body[place]):
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
        self._pending += [(package / "__init__.py", ()) for package in path.parents[: len(_package(path))]]
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
        for parts, names in _imports(node):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[min(node.level, len(path.parents)) - 1]
                package = folder / "__init__.py"
                found = self._inside(_Module(package if package.is_file() else None, (folder,)), parts)
            else:
                found = self.find(parts, dict.fromkeys((*self._files[path].tops, *self._roots)))
            if found is None:
                self._packages |= {parts[0]} if reached and parts and not getattr(node, "level", 0) else set()
                continue
            files = [found.file] if names is not None else [*found.above, found.file]
            below = [self._below(name, found.folders) for name in names or ()]
            whole = names is None or "*" in names
            for file in filter(None, files):
                self._pending.append((file, () if not reached else None if whole else names))
            for module in below:
                if module is not None and module.file is not None:
                    self._pending.append((module.file, None if reached else ()))

    def _follow_call(self, call: ast.Call, path: Path) -> None:
        """Go on to the modules that a call may import: to all whose names begin as far as its argument is written out."""
        name, is_whole = _written(call.args[0]) if call.args else ("", False)
        package = next((_written(keyword.value)[0] for keyword in call.keywords if keyword.arg == "package"), "")
        name = package + name if name.startswith(".") else name
        *above, begin = name.lstrip(".").split(".")
        roots = [*self._files[path].tops, *self._roots]
        if not name or name.startswith("."):  # relative, or not written out at all: taken for one of its neighbours
            up = max(1, len(name) - len(name.lstrip(".")))
            parent = self._inside(_Module(None, (path.parents[min(up, len(path.parents)) - 1],)), above)
        elif above:
            parent = self.find(above, roots)
        else:
            parent = _Module(None, (*roots, *filter(is_own, map(Path, sys.path))))
        for folder in parent.folders if parent is not None else ():
            for stem in sorted({entry.partition(".")[0] for entry in self._names_in(folder)}):
                module = self._below(stem, [folder])
                if (stem == begin if is_whole else stem.startswith(begin)) and module is not None and module.file:
                    self._pending.append((module.file, None))

    def _inside(self, module: _Module, parts: Iterable[str]) -> _Module | None:
        """A module below another."""
        for part in parts:
            below = self._below(part, module.folders)
            if below is None:
                return None
            above = module.above if module.file is None else (*module.above, module.file)
            module = _Module(below.file, below.folders, above)
        return module

    def _below(self, name: str, folders: Iterable[Path]) -> _Module | None:
        """A module in the first of the folders that has its file, or else all folders of its name."""
        found = []
        for folder in folders:
            names = self._names_in(folder)
            if name in names and "__init__.py" in self._names_in(folder / name):
                return _Module((folder / name / "__init__.py").resolve(), (folder / name,))
            file = next((f"{name}{suffix}" for suffix in _SUFFIXES if f"{name}{suffix}" in names), None)
            if file is not None:
                return _Module((folder / file).resolve())
            found += [folder / name] if name in names and (folder / name).is_dir() else []
        return _Module(None, tuple(found)) if found else None

    def _names_in(self, folder: Path) -> frozenset[str]:
        if folder not in self._listed:
            with contextlib.suppress(OSError):
                self._listed[folder] = frozenset(path.name for path in folder.iterdir())
        return self._listed.setdefault(folder, frozenset())

    def _top(self, name: str, roots: Iterable[Path]) -> _Module | None:
        """A module that is in no package: beside the files that were entered, or where Python looks for it."""
        found = self._below(name, roots)
        if found is not None and found.file is not None:
            return found if is_own(found.file) else None
        if name not in self._specs:
            self._specs[name] = None if name in sys.stdlib_module_names else _spec(name)
        spec = self._specs[name]
        folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations if spec else None) or ()]
        if spec is not None and spec.has_location and spec.origin:
            origin = Path(spec.origin).resolve()
            return _Module(origin, tuple(folders)) if is_own(origin) else None
        folders = [*(found.folders if found else ()), *filter(is_own, folders)]
        return _Module(None, tuple(dict.fromkeys(folders))) if folders else None


class _File:
    """The statements at the top of a file: which names each binds, and which do something when they run."""

    def __init__(self, path: Path) -> None:
        content, self.tops = path.read_bytes(), _tops(path)
        parsed = _parsed(content) if path.suffix == ".py" else None
        self.is_python = parsed is not None
        self.body = parsed.body if parsed else [ast.Expr(ast.Constant(hashlib.sha256(content).hexdigest()))]
        self.bound: dict[str, list[int]] = {}
        self.stars: list[int] = []
        self.effects: list[int] = []
        self.derived: list[str] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        for place, statement in enumerate(self.body):
            for name in _names(statement):
                (self.stars if name == "*" else self.bound.setdefault(name, [])).append(place)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.imports.append(statement)
            elif _does_something(statement):
                self.effects.append(place)
            elif isinstance(statement, ast.ClassDef) and statement.bases:
                self.derived.append(statement.name)


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, or changes something of, at the top of its file; `*` for what is not told."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target: ast.expr = node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _does_something(statement: ast.stmt) -> bool:
    """Whether a file does more by a statement, when it is imported, than bind a name to what is written there."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return bool(statement.decorator_list or getattr(statement, "keywords", ()))
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return any(
            isinstance(node, ast.Call | ast.Attribute | ast.Subscript) and _runs(node) for node in ast.walk(statement)
        )
    return not (isinstance(statement, ast.If) and not statement.orelse and _asks_for_main(statement.test))


def _runs(node: ast.AST) -> bool:
    """Whether it is a call, or changes what is bound elsewhere."""
    return isinstance(node, ast.Call) or (
        isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    )


def _asks_for_main(test: ast.expr) -> bool:
    """Whether it is the condition under which a file knows that it is a program."""
    sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) else []
    return {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[list[str], list[str] | None]]:
    """(module's name in parts, names in it or None for all of it) of an import; without parts: the folder's own package."""
    if isinstance(node, ast.Import):
        yield from ((alias.name.split("."), None) for alias in node.names)
    else:
        yield (node.module.split(".") if node.module else []), [alias.name for alias in node.names]


def _written(argument: ast.expr) -> tuple[str, bool]:
    """How a text begins that an expression gives, as far as it is written out, and whether that is all of it."""
    if isinstance(argument, ast.Constant):
        return str(argument.value), True
    if isinstance(argument, ast.JoinedStr) and argument.values:
        return _written(argument.values[0])[0], False
    if isinstance(argument, ast.BinOp):
        return _written(argument.left)[0].partition("%")[0], False
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):  # "…{}…".format(…)
        return _written(argument.func.value)[0].partition("{")[0], False
    return "", False


def _package(path: Path) -> list[str]:
    """The dotted name of the package that a file belongs to, in parts; by the `__init__.py` beside and above it."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts


def _tops(path: Path) -> tuple[Path, Path]:
    """The folders from which a file may import: the one that its package is in, and its own."""
    return path.parents[len(_package(path))], path.parent


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, as __main__ is
        return None


def _parsed(text: str | bytes) -> ast.Module | None:
    """The syntax tree of a text; None where it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # ValueError: a text with zero bytes
        return None


def _plain(tree: ast.AST) -> str:
    """A tree as text: no places, no docstrings."""
    for _ in _nodes(tree):
        pass
    return ast.dump(tree)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a tree, from which docstrings are taken away."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
            opens = node.body[0]
            if isinstance(opens, ast.Expr) and isinstance(opens.value, ast.Constant) and isinstance(opens.value.value, str):
                del node.body[0]
        yield node
        for held in vars(node).values():
            if isinstance(held, ast.AST):
                todo.append(held)
            elif isinstance(held, list):
                todo += [part for part in held if isinstance(part, ast.AST)]
