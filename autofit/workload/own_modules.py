"""The user's own modules, found by following imports from file to file. Nothing is imported or run."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Set
from glob import iglob
from importlib.machinery import BuiltinImporter
from pathlib import Path

_LIBRARIES = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1])  # the second is autofit
_FOLDERS_OF_PACKAGES = {"site-packages", "dist-packages"}
_IMPORTERS = {"import_module", "__import__"}


class OwnModules:
    """The files of the user's modules that define functions, and of all own modules that these import."""

    # An import is written as a dotted name. Leading dots make it relative; `*` as the last part means every module there.

    def __init__(self) -> None:
        self.digests: dict[Path, str] = {}
        self.packages: set[str] = set()  # top-level names of the imported modules that are not the user's own
        self.folders: list[str] = []  # searched before Python's search path

    def add(self, *files: Path) -> None:
        """Add files, the `__init__.py` of their packages, and every own module that they import."""
        pending = list(files)
        while pending:
            file = pending.pop()
            if file not in self.digests and file.is_file():  # the trial reports a missing file
                self.digests[file], imports, texts = read(file.read_bytes())
                pending += [file.parents[file.name == "__init__.py"] / "__init__.py", *self._files_of(imports, texts, file)]

    def follow(self, imports: Set[str], texts: Set[str], file: Path) -> None:
        """Add the own modules that code in a file loads by imports or may load by texts; without a file, in a notebook."""
        self.add(*self._files_of(imports, texts, file if file.is_file() else Path("notebook").absolute()))

    def contain(self, module: str) -> bool:
        """Return whether an imported module is the user's own. Add it to the own modules, or else to `packages`."""
        if not is_own_module(module):
            self.packages.add(module.partition(".")[0])
            return False
        if module != "__main__" and (file := getattr(sys.modules.get(module), "__file__", None)):
            self.add(Path(file))
        return True

    def _files_of(self, imports: Set[str], texts: Set[str], file: Path) -> Iterator[Path]:
        """Return the user's files that code in a file loads: the modules, and the `__init__.py` of their packages."""
        # code that imports by a computed name may import what lies where its strings begin to lead, and all beside it
        starts = {re.split(r"[^\w.]", text)[0].strip(".") for text in texts} if _IMPORTERS & texts else set()
        by_name = {f"{package}.*" for start in starts for package in (start, start.rpartition(".")[0])}
        # folders above the file come last: programs add them to the search path when they run
        above = [str(folder) for folder in file.parents]
        for name in imports | by_name:
            absolute = name.lstrip(".")
            level = len(name) - len(absolute)
            folders = above[level - 1 : level] if level else [*self.folders, *sys.path, *above]
            for position, part in enumerate(filter(None, absolute.split("."))):
                if part == "*":
                    yield from _modules_in(folders)
                    break
                located, folders = _locate(part, folders)
                yield from located
                if not located and not folders:
                    self.packages |= {part} if name in imports and not level and position == 0 else set()
                    break


def is_own_module(module: str) -> bool:
    """Return whether an imported module is the user's own, as `__main__` always is."""
    top = module.partition(".")[0]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top) if name != "__main__"]
    return next((is_own(Path(file)) for file in files if file), top not in sys.stdlib_module_names)


@functools.cache
def is_own(path: Path) -> bool:
    """Return whether a file or folder belongs neither to the standard library nor to an installed package."""
    path = path.resolve()
    if any(path.is_relative_to(folder) for folder in _LIBRARIES) or _FOLDERS_OF_PACKAGES & set(path.parts):
        return False
    # `pip install --target FOLDER` puts packages into any folder of the search path, perhaps among the user's own files
    search_path = {Path(entry).resolve() for entry in sys.path}
    return not any(each.name in _installed_in(each.parent) for each in (path, *path.parents) if each.parent in search_path)


@functools.cache
def _installed_in(folder: Path) -> set[str]:
    """Return the names of the files and folders of the distributions that a folder holds."""
    lines = []
    for metadata in folder.glob("*.dist-info"):
        record = metadata / "RECORD"
        text = record.read_text("utf-8", "replace") if record.is_file() else metadata.name.replace("-", "/")
        lines += text.splitlines()
    return {re.split("[/,]", line, maxsplit=1)[0] for line in lines}


def _modules_in(folders: Iterable[str]) -> Iterator[Path]:
    for folder in [Path(folder).absolute() for folder in folders if is_own(Path(folder))]:
        for form in ("*", "*/__init__.py"):
            names = iglob(form, root_dir=folder)  # noqa: PTH207  # Path.glob of Python 3.12 lists subfolders
            yield from (folder / name for name in names if inspect.getmodulename(name) and is_own(folder / name))


def _locate(name: str, folders: list[str]) -> tuple[list[Path], list[str]]:
    """Return the file of an own module, and the folders of its submodules; a package may have no file."""
    # others than Python's find editable installs; the one of built-in modules takes `math` in a package for its own
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec") and finder is not BuiltinImporter)
    spec = next(filter(None, (finder.find_spec(name, folders) for finder in finders)), None)
    files = [Path(spec.origin)] if spec is not None and spec.has_location and spec.origin else []
    below = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [file for file in files if is_own(file)], [folder for folder in below if is_own(Path(folder))]


@functools.lru_cache(1_000)  # files, for the next tune of a sweep
def read(content: bytes) -> tuple[str, Set[str], Set[str]]:
    """Return a digest of Python code (of its bytes if it cannot be parsed), its imports, and its names and strings."""
    digest, imports, texts = hashlib.sha256(content), set[str](), set[str]()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):  # removes docstrings
                body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            match node:
                case ast.Import(aliases):
                    imports |= {alias.name for alias in aliases}
                case ast.ImportFrom(module, aliases, level):
                    imports |= {"." * (level or 0) + (f"{module}." if module else "") + alias.name for alias in aliases}
                case ast.Name(text) | ast.Attribute(attr=text) | ast.alias(text) | ast.Constant(str(text)):
                    texts.add(text)
        digest = hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass"))
    return digest.hexdigest(), imports, texts
