"""What tells one workload from another: a hash of its own modules and arguments; and the versions of what it imports."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.workload.environment import plain
from autofit.workload.fingerprint.modules import Modules
from autofit.workload.fingerprint.values import Values
from autofit.workload.fit_options import CALLBACKS, is_made
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload, explained_pickling_errors

_DEEPER = 4  # times Python's recursion limit: a pickler, written in C, goes deeper than the functions here


@dataclass(frozen=True)
class Identity:
    """A workload's fingerprint, and the versions of the installed packages that its modules import."""

    fingerprint: str
    versions: dict[str, str]


def identify(workload: Workload) -> Identity:
    """Fingerprint a workload: the same one has the same fingerprint in another process and on another day.

    It changes when one of the user's own modules changes that the functions come from or import, directly or not (see
    `modules`), and when an argument, default or closure does (see `values`). Arrays given as data count by shape and type
    only, since their values change neither speed nor memory. Files that the functions read do not count.

    Raises:
        UsageError: something in the workload cannot be pickled.
    """
    importlib.invalidate_caches()  # a notebook's user may have written a module a moment ago
    parts = (workload.build_model, workload.data, workload.validation)
    named = (*parts, *workload.fit_kwargs.values())
    modules = Modules([str(part.path.parent) for part in named if isinstance(part, Reference) and part.path])
    limit = sys.getrecursionlimit()
    try:
        with explained_pickling_errors():
            sys.setrecursionlimit(_DEEPER * limit)
            texts = [_text(part, modules) for part in parts]
            arguments = [dict(workload.model_kwargs), dict(workload.data_kwargs), dict(workload.validation_kwargs)]
            texts.append(Values(modules, arrays_by_form=False).text(plain(arguments)))
            if workload.fit_kwargs:  # without any, the workload keeps the fingerprint that it had before they existed
                texts.append(_fit_text(workload.fit_kwargs, modules))
    finally:
        sys.setrecursionlimit(limit)
    texts += [repr((workload.dtype_policy, workload.jit_compile)), modules.text()]
    if workload.distribution is not None:  # as with `fit_kwargs`
        texts.append(workload.distribution)
    packages = sorted(modules.packages - {"", "cloudpickle", *sys.stdlib_module_names})  # cloudpickle: of closures' cells
    versions = {name: version for name in packages if (version := version_of(name))}
    return Identity(hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:16], versions)


def _fit_text(fit_kwargs: Mapping[str, Any], modules: Modules) -> str:
    """Arguments of `fit` as text; a callback counts by its class, since its values change from run to run."""
    values = dict(fit_kwargs)
    made = {name: values.pop(name) for name in fit_kwargs if is_made(fit_kwargs[name])}
    if isinstance(values.get(CALLBACKS), list | tuple):
        values[CALLBACKS] = [type(callback) for callback in values[CALLBACKS]]
    functions = [f"{name}={_text(function, modules)}" for name, function in sorted(made.items())]
    return "\0".join([Values(modules, arrays_by_form=False).text(values), *functions])


def version_of(package: str) -> str | None:
    """The version of an installed package, by the name under which it is imported; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    distributions = _distributions().get(package)
    return importlib.metadata.version(distributions[0]) if distributions else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions by the names under which they are imported, as `pillow` by `PIL`; reads the records of all of them."""
    return importlib.metadata.packages_distributions()


def _text(part: Any, modules: Modules) -> str:
    """A function or the data as text; the modules that it comes from are added."""
    if not isinstance(part, Reference):
        return Values(modules, arrays_by_form=not callable(part)).text(part)
    if part.path is None:
        modules.follow([part.module], Path())
        return part.text
    modules.add(part.path)
    return part.name
