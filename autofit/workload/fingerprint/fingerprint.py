"""What tells one workload from another: a hash of its sources, arguments and data's form; and the versions it needs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.workload.fingerprint import modules, reachable
from autofit.workload.fingerprint.values import Canonical, pickled
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, handing_over


@dataclass(frozen=True)
class Identity:
    """A workload's fingerprint, and the versions of the installed packages that its sources import."""

    fingerprint: str
    versions: dict[str, str]


def identify(workload: Workload) -> Identity:
    """Tell a workload from others: the same one has the same identity in another process and on another day.

    Seen are the sources of the functions and of what they reach, in their own files and in those that they import
    (`sources`); their closures and defaults; the plain globals that they name, and all of them where they are handed over
    with the function; arguments, in which functions and classes count as these do; and of arrays given as data the form,
    shape and type, since their values change neither speed nor memory. Not seen are files that the functions read.

    Raises:
        UsageError: something in the workload cannot be pickled.
    """
    found = _Digest()
    with handing_over():
        for part in (workload.build_model, workload.data, workload.validation):
            found.add(part)
        for kwargs in (workload.model_kwargs, workload.data_kwargs, workload.validation_kwargs):
            found.add_value(dict(kwargs))
    found.add_value((workload.dtype_policy, workload.jit_compile))
    return found.identity()


def version_of(package: str) -> str | None:
    """The version of an installed package, by the name under which it is imported; None where it is not known."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    found = _distributions().get(package)
    return importlib.metadata.version(found[0]) if found else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by the names under which they are imported, as `pillow` by `PIL`; reads the records of all of them."""
    return importlib.metadata.packages_distributions()


class _Digest:
    """Takes the parts of a workload one by one; sources that several of them reach are read and count once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._walk = reachable.Walk()
        self._packages: set[str] = set()

    def add(self, part: Any) -> None:
        """The model's function, or the data."""
        if not isinstance(part, Reference):
            self.add_value(part, arrays_by_form=not callable(part))
            return
        path = part.path or modules.file_of(part.module)
        self._text(part.name if part.path else part.text)
        if path is not None:
            self._walk.enter(path, part.name)
        else:
            self._packages.add(part.module.partition(".")[0])

    def add_value(self, value: Any, *, arrays_by_form: bool = False) -> None:
        """An argument; an array counts by its shape, type and both ends, or without the ends."""
        try:
            self._text(Canonical(self._walk, self._packages, arrays_by_form=arrays_by_form).text(value))
        except RecursionError:  # nested deeper than Python's stack, but not than a pickler's
            self._text(pickled(value, arrays_by_form=arrays_by_form))

    def identity(self) -> Identity:
        """Of all that was added."""
        reached = self._walk.reached()
        self._text(reached.text)
        packages = sorted(self._packages - {"", *sys.stdlib_module_names} | reached.packages)
        versions = {name: version for name in packages if (version := version_of(name))}
        return Identity(self._hash.hexdigest()[:16], versions)

    def _text(self, text: str) -> None:
        self._hash.update(text.encode(errors="surrogatepass") + b"\0")
