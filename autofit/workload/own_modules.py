"""The user's own modules, found by following imports from file to file. Nothing is imported or run."""

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
    """Return the globals that code reads, and the dotted names that it imports; leading dots make one relative."""
    names = set()
    imports = set()
    used = _instructions(code)
    for index, one in enumerate(used):
        if one.opname == "IMPORT_NAME":  # after the level and the names that are imported
            module = "." * used[index - 2].argval + one.argval
            dot = "." * bool(one.argval)
            imports |= {f"{module}{dot}{name}" for name in used[index - 1].argval or ()} or {module}
        elif one.opname in _GLOBALS:
            names.add(one.argval)
    for inner in filter(inspect.iscode, code.co_consts):
        inner_names, inner_imports = names_in(inner)
        names |= inner_names
        imports |= inner_imports
    return names, imports


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [one for one in dis.get_instructions(code) if one.opname not in ("NOP", "EXTENDED_ARG")]


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
    """Return the attributes of a class that count: no positions in its file, and nothing that no pickle can hold."""
    return {key: member for key, member in vars(made).items() if key not in _NOT_MEMBERS}


def package_of(obj: Any) -> str:
    """Return the top-level package of the module that defines a function or class, or the class of an object."""
    return str(getattr(obj, "__module__", "")).partition(".")[0]


@functools.lru_cache(1_000)  # files, for the next tune of a sweep
def read(content: bytes) -> tuple[str, set[str]]:
    """Return a digest of a file, of Python code without its comments and layout, and what it imports."""
    imports = set[str]()
    counted = content
    with (
        contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        tree = ast.parse(content)
        counted = ast.dump(tree).encode(errors="surrogatepass")
        _, imports = names_in(compile(tree, "", "exec", dont_inherit=True))
    return hashlib.sha256(counted).hexdigest(), imports


class OwnModules:
    """The files of the user's modules that define functions, and of all own modules that these import."""

    def __init__(self) -> None:
        self.digests: dict[Path, str] = {}
        self.folders: list[str] = []  # searched before Python's search path

    def add(self, *files: Path) -> None:
        """Add files, the `__init__.py` of their packages, and every own module that they import."""
        pending = list(files)
        while pending:
            file = pending.pop()
            if file not in self.digests and file.is_file():  # the trial reports a missing file
                self.digests[file], imports = read(file.read_bytes())
                pending += [
                    file.parents[file.name == "__init__.py"] / "__init__.py",
                    *self._files_of(imports, file),
                ]

    def follow(self, imports: set[str], file: Path) -> None:
        """Add the own modules that the code of a function in a file imports; without a file, in a notebook."""
        self.add(*self._files_of(imports, file if file.is_file() else Path("notebook").absolute()))

    def add_module(self, module: str) -> bool:
        """Return whether a loaded module is the user's own; add its file if it has one."""
        file = getattr(sys.modules.get(module), "__file__", None)
        is_own = is_own_module(module)
        if is_own and file and module != "__main__":
            self.add(Path(file))
        return is_own

    def _files_of(self, imports: set[str], file: Path) -> Iterator[Path]:
        """Return the user's files that a file imports: the modules, and the `__init__.py` of their packages."""
        # folders above the file come last: programs add them to the search path when they run
        above = [str(folder) for folder in file.parents]
        # others than Python's find editable installs; the one of built-in modules takes `math` in a package for its own
        finders = [
            finder
            for finder in sys.meta_path
            if hasattr(finder, "find_spec") and finder is not BuiltinImporter
        ]
        for name in imports:
            level = len(name) - len(name.lstrip("."))
            folders = above[level - 1 : level] if level else [*self.folders, *sys.path, *above]
            for part in name[level:].split("."):
                spec = next(
                    filter(None, (finder.find_spec(part, folders) for finder in finders)), None
                )
                if spec is None:
                    break
                if spec.has_location and spec.origin and is_own(Path(spec.origin)):
                    yield Path(spec.origin)
                # of a package, which may have no file of its own
                folders = [
                    folder
                    for folder in spec.submodule_search_locations or ()
                    if is_own(Path(folder))
                ]


def is_own_module(module: str) -> bool:
    """Return whether a loaded module is the user's own, as `__main__` always is."""
    top = module.partition(".")[0]
    files = [
        getattr(sys.modules.get(name), "__file__", None)
        for name in (module, top)
        if name != "__main__"
    ]
    return next((is_own(Path(file)) for file in files if file), top not in sys.stdlib_module_names)


@functools.cache
def is_own(path: Path) -> bool:
    """Return whether a file or folder belongs neither to the standard library nor to an installed package."""
    path = path.resolve()
    if any(path.is_relative_to(folder) for folder in _LIBRARIES) or _FOLDERS_OF_PACKAGES & set(
        path.parts
    ):
        return False
    # `pip install --target FOLDER` puts packages into any folder of the search path, perhaps among the user's own files
    search_path = {Path(entry).resolve() for entry in sys.path}
    return not any(
        each.name in _installed_in(each.parent)
        for each in (path, *path.parents)
        if each.parent in search_path
    )


# names of files and folders; an `egg-info` of the user's has no such record
@functools.cache
def _installed_in(folder: Path) -> set[str]:
    records = [
        each.read_text("RECORD") or ""
        for each in importlib.metadata.distributions(path=[str(folder)])
    ]
    return {
        re.split("[/,]", line, maxsplit=1)[0] for record in records for line in record.splitlines()
    }
