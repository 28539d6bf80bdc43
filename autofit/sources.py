"""What a function is made of: the statements of its file, and of the files that it imports, which it depends on.

Nothing is imported and nothing is run. Comments, blank lines, docstrings, dates and folders do not count, nor does what the
function does not reach: so that a hash of it changes where the function may do something else, and hardly ever otherwise.
Files of the standard library and of installed packages are left out; their versions are told elsewhere.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = tuple({Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Reached:
    """What was reached: `text` of the statements, in a form without layout, and the installed packages they import."""

    text: str
    packages: frozenset[str]


def of_name(path: Path, name: str, *, imported: bool = True) -> Reached:
    """What a function or class of a file is made of.

    Args:
        path: the file.
        name: of the function or class, at the top of the file.
        imported: whether the file will be imported, so that what stands at its top runs; what is pickled by value
            (functions of `__main__`) runs without it.
    """
    walk = _Walk()
    walk.enter(path.resolve(), name, effects=imported)
    return walk.reached()


def of_text(text: str) -> str:
    """Python text without its layout, comments and docstrings; as it is where it is not Python."""
    try:
        return _plain(ast.parse(text))
    except SyntaxError:
        return text


def file_of(module: str, beside: Path | None = None) -> Path | None:
    """The file of a module that is not installed; None where there is none, or it is installed.

    Args:
        module: its dotted name.
        beside: a folder to look in first.
    """
    top, *rest = module.split(".")
    for place in [beside] if beside is not None else []:
        found = _in_folder(place, [top, *rest])
        if found is not None:
            return found
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module without a spec, as __main__ is
        return None
    if spec is None:
        return None
    if not rest:
        origin = Path(spec.origin) if spec.origin and spec.has_location else None
        return origin if origin is not None and _is_own(origin) else None
    for folder in spec.submodule_search_locations or ():
        found = _in_folder(Path(folder), rest)
        if found is not None and _is_own(found):
            return found
    return None


class _Walk:
    """Follows names from statement to statement, and imports from file to file."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}
        self._taken: dict[Path, set[int]] = {}
        self._packages: set[str] = set()

    def enter(self, path: Path, name: str | None, *, effects: bool) -> None:
        """Take what `name` is bound to, everything where it is None, and what runs when the file is imported."""
        new = path not in self._files
        file = self._files.setdefault(path, _File(path)) if new else self._files[path]
        taken = self._taken.setdefault(path, set())
        whole = name is None or not file.is_python
        wanted = list(range(len(file.body)) if whole else file.bound.get(name or "", ()))
        wanted += file.effects if effects and new else []
        while wanted:
            place = wanted.pop()
            if place in taken:
                continue
            taken.add(place)
            for node in ast.walk(file.body[place]):
                if isinstance(node, ast.Name):
                    wanted += file.bound.get(node.id, ())
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    self._follow(node, path)

    def _follow(self, node: ast.Import | ast.ImportFrom, path: Path) -> None:
        top = path.parents[len(_package(path))]
        for module, name in _imports(node, path):
            found = file_of(module, top) or file_of(module, path.parent)
            if found is None:
                self._packages.add(module.partition(".")[0])
                continue
            for package in found.parents[: len(_package(found))]:
                self.enter((package / "__init__.py").resolve(), "", effects=True)
            part = None if name is None else _in_folder(found.parent, [name])
            if part is not None and found.name == "__init__.py":
                self.enter(found.resolve(), name, effects=True)
                self.enter(part.resolve(), None, effects=True)
            elif found.suffix == ".py":
                self.enter(found.resolve(), None if name == "*" else name, effects=True)

    def reached(self) -> Reached:
        """All that was taken, file by file in the order of their names."""
        parts = []
        for path in sorted(self._files, key=lambda path: (path.name, path)):
            body = self._files[path].body
            parts += [path.name, *(_plain(body[place]) for place in sorted(self._taken[path]))]
        return Reached("\n".join(parts), frozenset(self._packages - set(sys.stdlib_module_names)))


class _File:
    """The statements at the top of a file: which names each binds, and which do something when they run."""

    def __init__(self, path: Path) -> None:
        self.is_python, text = True, path.read_bytes()
        try:
            self.body = ast.parse(text).body
        except (SyntaxError, ValueError):
            self.is_python, self.body = False, [ast.Expr(ast.Constant(text))]
        self.bound: dict[str, list[int]] = {}
        self.effects: list[int] = []
        for place, statement in enumerate(self.body):
            for name in _names(statement):
                self.bound.setdefault(name, []).append(place)
            if _does_something(statement):
                self.effects.append(place)


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds at the top of its file."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _does_something(statement: ast.stmt) -> bool:
    """Whether importing the file does more by it than bind a name to what is written there."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return not (isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test))


def _imports(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, str | None]]:
    """(module, name in it or None for the whole) of an import statement in a file."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        base = ".".join([*_package(path)[: len(_package(path)) - node.level + 1], *filter(None, [node.module])])
    yield from ((base, alias.name) for alias in node.names)


def _package(path: Path) -> list[str]:
    """The dotted name of the package that a file belongs to, in parts; by the `__init__.py` beside and above it."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts


def _in_folder(folder: Path, parts: Iterable[str]) -> Path | None:
    """The file of a module below a folder."""
    *packages, last = parts
    place = folder.joinpath(*packages)
    return next((p for p in (place / last / "__init__.py", place / f"{last}.py") if p.is_file()), None)


@functools.cache
def _is_own(path: Path) -> bool:
    """Whether a file is neither of the standard library nor of an installed package."""
    whole = path.resolve()
    return not any(whole.is_relative_to(folder) for folder in _INSTALLED) and "site-packages" not in whole.parts


def _plain(node: ast.AST) -> str:
    """A syntax tree as text: no places, no docstrings."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and isinstance(inner, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            opens = body[0] if body else None
            if isinstance(opens, ast.Expr) and isinstance(opens.value, ast.Constant) and isinstance(opens.value.value, str):
                inner.body = body[1:]
    return ast.dump(node)
