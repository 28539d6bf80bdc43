"""Whether a tune could begin: every name resolved, every argument bound, limits and device found; nothing is run."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from autofit.api.config import load
from autofit.api.session import build_request
from autofit.errors import UsageError, UserCodeError
from autofit.records.units import format_bytes
from autofit.storage import urls
from autofit.trial.worker.job import user_traceback
from autofit.tuning.cached import stored_attributes
from autofit.workload.inputs.knobs import knobs_of
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # user code imports the backend; no GPU is started


def check(workload: Workload, asked: Mapping[str, Any]) -> dict[str, str]:
    """Import what the workload names, see that it takes what it is given, and find limits and device.

    The user's modules are imported in this process; their functions are not called.

    Returns:
        What was found, in words by what it is about.

    Raises:
        UserCodeError: a module cannot be imported.
        UsageError: a name is not there, or does not take its arguments; a limit or device cannot be had.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    request, _ = build_request(workload, fresh=False, asked=dict(asked))
    build = _resolved("build_model", workload.build_model)
    _bind("build_model", build, workload.model_kwargs)
    found = {"model": request.usage.model}
    for key, given in (("data", workload.data), ("validation", workload.validation)):
        if given is None:
            continue
        part, kwargs = _resolved(key, given), getattr(workload, f"{key}_kwargs")
        knobs = knobs_of(part, kwargs)
        if callable(part):
            _bind(key, part, {**dict.fromkeys(knobs.values()), **kwargs})
        taken = ", ".join(knobs) or "none of the knobs (which leaves the batch size of arrays, and nothing of other data)"
        found[key] = f"{getattr(request.usage, key)} takes {taken}"
        unknown = [knob for knob in request.space if knob not in knobs and callable(part) and knobs]
        if key == "data" and unknown:
            name = unknown[0]
            raise UsageError(f"the data takes {taken}; give its factory a parameter {name}", key=f"space.{name}")
    device = request.limits.device_bytes
    limits = "no limit of its own" if device is None else format_bytes(device)
    found["device"] = f"{request.device_name}, {limits}"
    found["host"] = f"{format_bytes(request.limits.host_bytes)} of {format_bytes(request.machine.memory_bytes)}"
    kept = stored_attributes(request)
    known = "not asked before" if kept is None else "asked before; trials are kept"
    known = "known" if kept is not None and request.result_key() in kept else known
    found["answer"] = f"{known} ({urls.url_of(request.storage)})"
    return found


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Keep what libraries write to standard error while they are imported from the terminal, and them from the GPU."""
    sys.stderr.flush()
    kept, before = os.dup(2), {name: os.environ.get(name) for name in _QUIET}
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _resolved(key: str, part: Any) -> Any:
    if not isinstance(part, Reference):
        return part
    try:
        with _unheard():
            return part.resolve()
    except UsageError as error:
        raise UsageError(str(error), key=key) from None
    except Exception as error:
        raise UserCodeError(f"importing {part.text} for {key}", user_traceback(error)) from None


def _bind(key: str, function: Any, kwargs: Mapping[str, Any]) -> None:
    """See that a function takes these arguments, and needs no others."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", key)
        own = "model_kwargs" if key == "build_model" else f"{key}_kwargs"
        raise UsageError(f"{name}{signature} cannot be called so: {error}", key=own) from None


def check_file(path: str | os.PathLike[str], **overrides: Any) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """See whether what a YAML file describes could be tuned: import its functions, call none of them.

    `overrides` are arguments of `tune` that take precedence.

    Returns:
        For the tune, or each cell of the sweep: its values by axis, and what was found, in words.

    Raises:
        ConfigError: the file says something that is not allowed; names file, line, column and key.
        UsageError: a function is not there, or does not take its arguments; a limit or device cannot be had.
        UserCodeError: a module of the user's cannot be imported.
    """
    parts = [field.name for field in fields(Workload)]
    found = []
    for values, told in load.load_any(os.fspath(path)):
        workload = Workload(**{name: told.pop(name) for name in parts})
        try:
            found.append((values, check(workload, {**told, **overrides})))
        except UsageError as error:
            raise load.placed(os.fspath(path), error, overrides) from None
    return found
