"""The user's own modules, found by following imports from file to file.

Nothing is imported or run.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import hashlib
import importlib.metadata
import inspect
import itertools
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.machinery import BuiltinImporter
from pathlib import Path
from types import CodeType
from typing import Any

# the second is autofit
_LIBRARIES = (
    Path(sysconfig.get_path("stdlib")).resolve(),
    Path(__file__).resolve().parents[1],
)
_FOLDERS_OF_PACKAGES = {"site-packages", "dist-packages"}
_NOT_MEMBERS = {
    "__dict__",
    "__weakref__",
    "__module__",
    "__firstlineno__",
    "__static_attributes__",
    "__annotate_func__",
    "__annotations_cache__",
    "_abc_impl",
}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def names_in(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the globals that code reads, and the dotted names that it imports.

    Leading dots make a name relative.
    """
    names = set()
    imports = set()
    used = _instructions(code)
    for index, one in enumerate(used):
        if one.opname == "IMPORT_NAME":
            # it comes after the level and the names that are imported
            level = used[index - 2].argval
            parts = used[index - 1].argval or ()
            module = "." * level + one.argval
            dot = "." * bool(one.argval)
            imports |= {f"{module}{dot}{part}" for part in parts} or {module}
        elif one.opname in _GLOBALS:
            names.add(one.argval)
    for inner in filter(inspect.iscode, code.co_consts):
        inner_names, inner_imports = names_in(inner)
        names |= inner_names
        imports |= inner_imports
    return names, imports


def _instructions(code: CodeType) -> list[dis.Instruction]:
    every = dis.get_instructions(code)
    return [one for one in every if one.opname not in ("NOP", "EXTENDED_ARG")]


def attributes_in(code: CodeType, variable: str) -> set[str]:
    """Return the attributes of a variable that code reads or calls."""
    attributes = {
        str(after.argval)
        for one, after in itertools.pairwise(_instructions(code))
        if one.argval == variable and after.opname in ("LOAD_ATTR", "LOAD_METHOD")
    }
    inner = filter(inspect.iscode, code.co_consts)
    return attributes.union(*(attributes_in(each, variable) for each in inner))


def members_of(made: type) -> dict[str, Any]:
    """Return the attributes of a class that count.

    Positions in its file are left out, and what a pickle cannot hold.
    """
    members = vars(made).items()
    return {key: member for key, member in members if key not in _NOT_MEMBERS}


def package_of(obj: Any) -> str:
    """Return the top-level package that defines a function or class, or the class of an object."""
    module = str(getattr(obj, "__module__", ""))
    return module.partition(".")[0]


@functools.lru_cache(1_000)  # files, for the next tune of a sweep
def read(content: bytes) -> tuple[str, set[str]]:
    """Return a digest of a file, and what it imports; comments and layout of code do not count."""
    imports = set[str]()
    counted = content
    with (
        contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
        counted = ast.dump(tree).encode(errors="surrogatepass")
        code = compile(tree, "", "exec", dont_inherit=True)
        _, imports = names_in(code)
    return hashlib.sha256(counted).hexdigest(), imports


class OwnModules:
    """The files of modules that define functions, and of all own modules that these import."""

    def __init__(self) -> None:
        self.digests = dict[Path, str]()
        self.folders = list[str]()  # searched before Python's search path

    def add(self, *files: Path) -> None:
        """Add files, the `__init__.py` of their packages, and every own module that they import."""
        pending = list(files)
        while pending:
            file = pending.pop()
            # the trial reports a missing file
            if file not in self.digests and file.is_file():
                self.digests[file], imports = read(file.read_bytes())
                package = file.parents[file.name == "__init__.py"]
                pending.append(package / "__init__.py")
                pending += self._files_of(imports, file)

    def follow(self, imports: set[str], file: Path) -> None:
        """Add the own modules that the code of a function in a file imports.

        The code of a notebook has no file.
        """
        if not file.is_file():
            file = Path("notebook").absolute()
        self.add(*self._files_of(imports, file))

    def add_module(self, module: str) -> bool:
        """Return whether a loaded module is the user's own; add its file if it has one."""
        file = getattr(sys.modules.get(module), "__file__", None)
        is_own = is_own_module(module)
        if is_own and file and module != "__main__":
            self.add(Path(file))
        return is_own

    def _files_of(self, imports: set[str], file: Path) -> Iterator[Path]:
        """Yield the modules of the user that a file imports, and the files of their packages."""
        # folders above the file come last: programs add them to the search path when they run
        above = [str(folder) for folder in file.parents]
        # others than Python's find editable installs; the one of built-in modules takes `math` in a
        # package for its own
        finders = [
            finder
            for finder in sys.meta_path
            if hasattr(finder, "find_spec") and finder is not BuiltinImporter
        ]
        for name in imports:
            level = len(name) - len(name.lstrip("."))
            folders = [*self.folders, *sys.path, *above]
            if level:
                folders = above[level - 1 : level]
            for part in name[level:].split("."):
                found = (finder.find_spec(part, folders) for finder in finders)
                spec = next(filter(None, found), None)
                if spec is None:
                    break
                origin = Path(spec.origin or "")
                if spec.has_location and is_own(origin):
                    yield origin
                # of a package, which may have no file of its own
                inner = spec.submodule_search_locations or ()
                folders = [folder for folder in inner if is_own(Path(folder))]


def is_own_module(module: str) -> bool:
    """Return whether a loaded module is the user's own, as `__main__` always is."""
    top = module.partition(".")[0]
    for name in (module, top):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and name != "__main__":
            return is_own(Path(file))
    return top not in sys.stdlib_module_names


@functools.cache
def is_own(path: Path) -> bool:
    """Return whether a file or folder is neither of the standard library nor of a package."""
    path = path.resolve()
    if any(path.is_relative_to(folder) for folder in _LIBRARIES):
        return False
    if _FOLDERS_OF_PACKAGES & set(path.parts):
        return False
    # `pip install --target FOLDER` puts packages into any folder of the search path, perhaps among
    # the user's own files
    search_path = {Path(entry).resolve() for entry in sys.path}
    return not any(
        each.name in _installed_in(each.parent)
        for each in (path, *path.parents)
        if each.parent in search_path
    )


@functools.cache
def _installed_in(folder: Path) -> set[str]:
    """Return the names of the files and folders that packages have in a folder."""
    names = set[str]()
    for each in importlib.metadata.distributions(path=[str(folder)]):
        # an `egg-info` of the user's has no such record
        for line in (each.read_text("RECORD") or "").splitlines():
            names.add(re.split("[/,]", line, maxsplit=1)[0])
    return names
