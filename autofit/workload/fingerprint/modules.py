"""Where a module of the user's lies: beside the files that import it, or where Python looks for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

_INSTALLED = (
    *{Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib")},
    Path(__file__).resolve().parents[2],  # autofit itself, which may be installed from a checkout
)
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")  # in the order in which Python looks for them


@functools.cache
def is_own(path: Path) -> bool:
    """Whether a file or folder is neither of the standard library nor of an installed package."""
    whole = path.resolve()
    return not any(whole.is_relative_to(folder) for folder in _INSTALLED) and not _INSTALLED_FOLDERS & set(whole.parts)


@dataclass(frozen=True)
class Module:
    """Where a module lies: its file (None: a package without `__init__.py`), and the folders of what is below it."""

    file: Path | None
    folders: tuple[Path, ...] = ()
    above: tuple[Path, ...] = ()
    """The files of the packages that it is in."""


class Finder:
    """Finds modules by their dotted names; a folder is listed once."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}
        self._listed: dict[Path, frozenset[str]] = {}
        self._known: dict[tuple[Path, str], Module | None] = {}

    def find(self, parts: Sequence[str], roots: Iterable[Path]) -> Module | None:
        """A module of the user's, by its dotted name in parts; None where there is none, or it is installed.

        Args:
            parts: of the name, at least one.
            roots: folders to look in before Python's own search path.
        """
        found = self._top(parts[0], roots)
        return found and self.inside(found, parts[1:])

    def inside(self, module: Module, parts: Iterable[str]) -> Module | None:
        """A module below another."""
        for part in parts:
            below = self.below(part, module.folders)
            if below is None:
                return None
            above = module.above if module.file is None else (*module.above, module.file)
            module = Module(below.file, below.folders, above)
        return module

    def below(self, name: str, folders: Iterable[Path]) -> Module | None:
        """A module in the first of the folders that has its file, or else all folders of its name."""
        spaces: list[Path] = []
        for folder in folders:
            if (folder, name) not in self._known:
                self._known[folder, name] = self._in(folder, name)
            found = self._known[folder, name]
            if found is not None and found.file is not None:
                return found
            spaces += found.folders if found is not None else ()
        return Module(None, tuple(spaces)) if spaces else None

    def _in(self, folder: Path, name: str) -> Module | None:
        """A module in a folder, or the folder of that name in it."""
        names, inner = self.names_in(folder), folder / name
        if name in names and (inner / "__init__.py").is_file():
            return Module((inner / "__init__.py").resolve(), (inner,))
        file = next((f"{name}{suffix}" for suffix in _SUFFIXES if f"{name}{suffix}" in names), None)
        if file is not None:
            return Module((folder / file).resolve())
        return Module(None, (inner,)) if name in names and inner.is_dir() else None

    def names_in(self, folder: Path) -> frozenset[str]:
        """What lies in a folder; nothing where it cannot be read."""
        if folder not in self._listed:
            with contextlib.suppress(OSError):
                self._listed[folder] = frozenset(path.name for path in folder.iterdir())
        return self._listed.setdefault(folder, frozenset())

    def _top(self, name: str, roots: Iterable[Path]) -> Module | None:
        """A module that is in no package: beside the files that were entered, or where Python looks for it."""
        found = self.below(name, roots)
        if found is not None and found.file is not None:
            return found if is_own(found.file) else None
        if name not in self._specs:
            self._specs[name] = None if name in sys.stdlib_module_names else _spec(name)
        spec = self._specs[name]
        folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations if spec else None) or ()]
        if spec is not None and spec.has_location and spec.origin:
            origin = Path(spec.origin).resolve()
            return Module(origin, tuple(folders)) if is_own(origin) else None
        folders = [*(found.folders if found else ()), *filter(is_own, folders)]
        return Module(None, tuple(dict.fromkeys(folders))) if folders else None


def file_of(module: str) -> Path | None:
    """The file of a module that is not installed, by its dotted name; None where there is none, or it is installed."""
    found = Finder().find(module.split("."), ())
    return found.file if found is not None else None


def package_of(path: Path) -> list[str]:
    """The dotted name of the package that a file belongs to, in parts; by the `__init__.py` beside and above it."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts


def tops_of(path: Path) -> tuple[Path, Path]:
    """The folders from which a file may import: the one that its package is in, and its own."""
    return path.parents[len(package_of(path))], path.parent


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, as __main__ is
        return None
