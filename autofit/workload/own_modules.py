"""The user's own modules, found by following imports from file to file. Nothing is imported or run.

Everything in a module counts except comments, layout and docstrings. If a module uses `import_module` or `__import__`, it
may import anything: all modules in its folder and on the search path count as well. The modules of a package count too if
a string in the module or in the workload's arguments names that package.

This module writes an import as a dotted name. Leading dots make it relative; `*` as the last part means every module there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import itertools
import re
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterable, Iterator
from glob import iglob
from pathlib import Path

_INSTALLED = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1])  # the second is autofit
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_IMPORTERS = {"import_module", "__import__"}
_ANY = "*"  # as a part of an import: every module there
_MAX_CACHED_SOURCES = 1_000  # parsed files that are cached for the next tune of a sweep


class OwnModules:
    """The files of the user's modules that define functions, and of all own modules that these import.

    The given folders are searched for modules before Python's search path. `packages` are the top-level names of the
    imported modules that are not the user's own.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self.packages: set[str] = set()
        self._folders = list(folders)
        self._digests: dict[Path, str] = {}
        self._importing_by_name: list[Path] = []

    def add(self, *files: Path) -> None:
        """Add files, the `__init__.py` of their packages, and every own module that they import."""
        pending = list(files)
        while pending:
            file = pending.pop()
            if file in self._digests or not file.is_file():  # the trial reports a missing file
                continue
            self._digests[file], imports = read(file.read_bytes())
            pending.append(file.parents[file.name == "__init__.py"] / "__init__.py")
            pending += self._files_of(imports, file)

    def follow(self, imports: Collection[str], file: Path) -> None:
        """Add the own modules that `imports` in a file load; if the file does not exist, a notebook is meant."""
        self.add(*self._files_of(imports, file if file.is_file() else Path("notebook").absolute()))

    def follow_texts(self, texts: set[str]) -> None:
        """Add the own modules that strings in code and arguments may name, if code uses `import_module` or `__import__`."""
        if _IMPORTERS & texts:
            self.follow([_ANY], Path())
        for file in self._importing_by_name:  # the loop reaches files that it adds
            self.follow(list(_named_by(texts)), file)

    def contain(self, module: str) -> bool:
        """Return whether an imported module is the user's own. Add it to the own modules, or else to `packages`."""
        top = module.partition(".")[0]
        origins = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
        file = next((Path(origin) for origin in origins if origin and Path(origin).is_file()), None)
        if module != "__main__" and not (_is_own(file) if file else top not in sys.stdlib_module_names):
            self.packages.add(top)
            return False
        if file and module != "__main__":
            self.add(file)
        return True

    def text(self) -> str:
        """Return the names and digests of the files, without their folders."""
        digests = {file.resolve(): digest for file, digest in self._digests.items()}  # a file counts once despite links
        return "\n".join(f"{file.name} {digests[file]}" for file in sorted(digests, key=lambda file: (file.name, file)))

    def _files_of(self, imports: Collection[str], file: Path) -> Iterator[Path]:
        """Return the user's files that the imports in a file load: the modules, and the `__init__.py` of their packages."""
        if _ANY in imports:
            self._importing_by_name.append(file)
        for name in imports:
            absolute = name.lstrip(".")
            folders = [*self._folders, *sys.path]
            if level := len(name) - len(absolute):
                folders = [str(folder) for folder in file.parents[level - 1 : level]]
            elif name != _ANY:  # folders above the file come last: programs add them to the search path when they run
                folders += map(str, file.parents)
            for position, part in enumerate(filter(None, absolute.split("."))):
                if part == _ANY:
                    own = [Path(folder).absolute() for folder in folders if _is_own(Path(folder))]
                    for folder, form in itertools.product(own, ("*", "*/__init__.py")):
                        names = iglob(form, root_dir=folder)  # noqa: PTH207  # Path.glob of Python 3.12 lists subfolders
                        yield from (folder / name for name in names if inspect.getmodulename(name))
                    break
                located, folders = _locate(part, folders)
                yield from located
                if not located and not folders:
                    self.packages |= set() if level or position else {part}
                    break


@functools.cache
def _is_own(path: Path) -> bool:
    """Return whether a file or folder belongs neither to the standard library nor to an installed package."""
    path = path.resolve()
    return not any(path.is_relative_to(folder) for folder in _INSTALLED) and not _INSTALLED_FOLDERS & set(path.parts)


def _locate(name: str, folders: list[str]) -> tuple[list[Path], list[str]]:
    """Return the file of an own module, and the folders of its submodules; a package may have no file."""
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))  # also those of editable installs
    spec = next(filter(None, (finder.find_spec(name, folders) for finder in finders)), None)
    files = [Path(spec.origin)] if spec is not None and spec.has_location and spec.origin else []
    below = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [file for file in files if _is_own(file)], [folder for folder in below if _is_own(Path(folder))]


@functools.lru_cache(_MAX_CACHED_SOURCES)
def read(content: bytes) -> tuple[str, frozenset[str]]:
    """Return a digest of Python code, and its imports. If the code cannot be parsed, the digest is that of its bytes."""
    text, imports = content, frozenset[str]()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
        imports = frozenset(_imports_of(tree))
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):  # removes docstrings
                body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        text = ast.dump(tree).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest(), imports


def _imports_of(tree: ast.Module) -> Iterator[str]:
    names, texts = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module, aliases, level):
                yield from ("." * (level or 0) + (f"{module}." if module else "") + alias.name for alias in aliases)
            case ast.Name(name) | ast.Attribute(attr=name) | ast.alias(name):
                names.add(name)
            case ast.Constant(str(text)):
                texts.add(text)
    if names & _IMPORTERS:
        yield from (_ANY, f".{_ANY}", *_named_by(texts))


def _named_by(texts: Iterable[str]) -> Iterator[str]:
    """Return imports of all modules whose names may start with one of the texts."""
    for start in {re.split(r"[^\w.]", text)[0] for text in texts}:
        yield from (f"{start}.*", f"{start.rpartition('.')[0]}.*")  # the last part may be the beginning of a name
