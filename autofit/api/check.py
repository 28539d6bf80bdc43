"""A dry run: every name resolved, every argument bound, limits and device found; nothing is trained."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from autofit.api.config import load
from autofit.api.session import build_request, parse
from autofit.errors import UsageError, UserCodeError
from autofit.records.units import format_bytes
from autofit.storage import urls
from autofit.trial.worker.job import user_traceback
from autofit.tuning.cached import stored_attributes
from autofit.tuning.settings import TuneSettings
from autofit.workload.inputs.knobs import knobs_of
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # user code imports the backend; no GPU is started


def dry_run(workload: Workload, settings: TuneSettings) -> dict[str, str]:
    """Import the workload's functions, check that they take their arguments, and find limits and device.

    The user's modules are imported in this process; their functions are not called.

    Returns:
        Findings by subject.

    Raises:
        UserCodeError: a module cannot be imported.
        UsageError: a name does not exist or does not take its arguments; a limit or device is not available.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    request = build_request(workload, settings)
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
        unknown = [knob for knob in settings.space.values() if knob not in knobs and callable(part) and knobs]
        if key == "data" and unknown:
            raise UsageError(
                f"the data takes {taken}; give its factory a parameter {unknown[0]}", key=f"space.{unknown[0]}"
            )
    device = request.limits.device_bytes
    limits = "no limit of its own" if device is None else format_bytes(device)
    found["device"] = f"{request.device_name}, {limits}"
    found["host"] = f"{format_bytes(request.limits.host_bytes)} of {format_bytes(request.machine.memory_bytes)}"
    kept = stored_attributes(request)
    known = "not asked before" if kept is None else "asked before; trials are kept"
    known = "known" if kept is not None and request.result_key() in kept else known
    found["answer"] = f"{known} ({urls.url_of(settings.storage)})"
    return found


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silence stderr and hide the GPUs while user modules are imported."""
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
        with _silenced():
            return part.resolve()
    except UsageError as error:
        raise UsageError(str(error), key=key) from None
    except Exception as error:
        raise UserCodeError(f"while importing {part.text} for {key}", user_traceback(error)) from None


def _bind(key: str, function: Any, kwargs: Mapping[str, Any]) -> None:
    """Check that a function takes these arguments and needs no others."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", key)
        own = "model_kwargs" if key == "build_model" else f"{key}_kwargs"
        raise UsageError(f"{name}{signature} cannot be called with these arguments: {error}", key=own) from None


def check_file(path: str | os.PathLike[str], **overrides: Any) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Check whether a YAML file can be tuned: import its functions, call none of them.

    `overrides` are arguments of `tune` that take precedence.

    Returns:
        For the tune, or each cell of the sweep: its values by axis, and the findings.

    Raises:
        ConfigError: the file contains something that is not allowed; names file, line, column and key.
        UsageError: a function does not exist or does not take its arguments; a limit or device is not available.
        UserCodeError: a module of the user's cannot be imported.
    """
    try:
        return [
            (values, dry_run(*parse({**arguments, **overrides}))) for values, arguments in load.load_any(os.fspath(path))
        ]
    except UsageError as error:
        raise load.placed(os.fspath(path), error, overrides) from None
