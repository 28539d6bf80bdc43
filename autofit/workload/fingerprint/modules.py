"""The user's own modules, reached by following imports from file to file; nothing is imported and nothing runs.

A module counts as a whole, except for comments, layout, docstrings and its `if __name__ == "__main__":` block. One that
imports by a name put together at run time counts with the modules beside it, and with those whose names begin like a text
in the call. An import is written as a dotted name: leading dots make it relative, `*` at the end matches any rest.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import pkgutil
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

_INSTALLED = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[2])  # and autofit itself
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_IMPORTERS = {"import_module", "__import__"}
_MAX_CACHED_SOURCES = 1_000  # parsed files kept for the next tune of a sweep


@functools.cache
def is_own(path: Path) -> bool:
    """Whether a file or folder belongs neither to the standard library nor to an installed package."""
    path = path.resolve()
    return not any(path.is_relative_to(folder) for folder in _INSTALLED) and not _INSTALLED_FOLDERS & set(path.parts)


class Modules:
    """The own modules that functions come from, and what these import.

    Args:
        folders: where to look for modules before Python's search path.

    Attributes:
        packages: top-level names of the imported modules that are not the user's own.
    """

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self.packages: set[str] = set()
        self._folders = list(dict.fromkeys(folders))
        self._digests: dict[Path, str] = {}

    def add(self, *files: Path) -> None:
        """Add files, the packages that they are in, and every own module that they import."""
        pending = list(files)
        while pending:
            file = pending.pop()
            if file in self._digests or not file.is_file():  # the trial reports a missing file
                continue
            self._digests[file], imports = read(file.read_bytes())
            pending.append(file.parents[file.name == "__init__.py"] / "__init__.py")
            for name in imports:
                pending += self._files_of(name, file)

    def follow(self, imports: Iterable[str], file: Path) -> None:
        """Add the own modules that imports lead to, in a file or, if it does not exist, in a notebook."""
        importing = file if file.is_file() else Path("notebook").absolute()
        self.add(*(imported for name in imports for imported in self._files_of(name, importing)))

    def text(self) -> str:
        """The modules' names and digests, the same in whichever folder they lie."""
        digests = {file.resolve(): digest for file, digest in self._digests.items()}  # once, whatever links lead to it
        return "\n".join(f"{file.name} {digests[file]}" for file in sorted(digests, key=lambda file: (file.name, file)))

    def _files_of(self, name: str, file: Path) -> Iterator[Path]:
        """The own files that an import in a file runs: a module's, and those of the packages that it is in."""
        level = len(name) - len(name.lstrip("."))
        parts = [part for part in name[level:].split(".") if part]
        # a folder above the file comes last: programs add such ones to the search path
        folders = [*self._folders, *sys.path, *map(str, file.parents)]
        if level:
            folders = [str(file.parents[min(level, len(file.parents)) - 1])]
        elif parts[:1] == ["*"]:
            folders = [str(file.parent), *self._folders]
        for place, part in enumerate(parts):
            if part.endswith("*"):
                for module in pkgutil.iter_modules(folders):
                    if module.name.startswith(part[:-1]):
                        yield from _locate(module.name, folders)[0]
                return
            files, folders = _locate(part, folders)
            yield from files
            if not files and not folders:
                self.packages |= set() if level or place else {part}
                return


def _locate(name: str, folders: list[str]) -> tuple[list[Path], list[str]]:
    """The file of an own module (none for a package without `__init__.py`) and the folders of what is below it."""
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next(filter(None, (finder.find_spec(name, folders) for finder in finders)), None)
    files = [Path(spec.origin)] if spec is not None and spec.has_location and spec.origin else []
    below = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [file for file in files if is_own(file)], [folder for folder in below if is_own(Path(folder))]


@functools.lru_cache(_MAX_CACHED_SOURCES)
def read(content: bytes) -> tuple[str, frozenset[str]]:
    """A digest of Python code, and its imports; of what is not Python, or too deeply nested, the bytes count."""
    text, imports = content, frozenset[str]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
        tree.body = [kept for statement in tree.body for kept in _imported(statement)]
        imports = frozenset(_imports_of(tree))
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):  # docstrings are constants that stand alone
                body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        text = ast.dump(tree).encode(errors="surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return hashlib.sha256(text).hexdigest(), imports


def _imported(statement: ast.stmt) -> list[ast.stmt]:
    """What runs of a module's statement when it is imported."""
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
        return statement.orelse
    return [statement]


def _imports_of(tree: ast.Module) -> Iterator[str]:
    """The imports anywhere in a file, those by `import_module` and `__import__` too."""
    unnamed = 0  # importing functions that are called with a name put together at run time, or passed on
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                yield from ("." * (level or 0) + (f"{module}." if module else "") + alias.name for alias in names)
                unnamed += sum(alias.name in _IMPORTERS and alias.asname is not None for alias in names)
            case ast.Name(name) | ast.Attribute(attr=name) if name in _IMPORTERS:
                unnamed += 1
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [ast.Constant(str(text))], []) if name in _IMPORTERS:
                unnamed -= 1
                yield text
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name in _IMPORTERS:
                constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                for beginning in {re.split(r"[^\w.]", text)[0] for text in constants if isinstance(text, str)} - {""}:
                    yield from (f"{beginning}*", f"{beginning.rstrip('.')}.*")
    if unnamed:
        yield "*"
