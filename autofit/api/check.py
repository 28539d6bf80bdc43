"""`check_file`: a dry run that resolves every name, argument and limit without training."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from autofit import backends
from autofit.api.config import load
from autofit.api.requests import build_request, detect, parse, refuse_unsupported
from autofit.errors import UsageError, UserCodeError
from autofit.records.units import format_bytes
from autofit.trial.worker.job import user_traceback
from autofit.tuning.settings import TuneSettings
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.workload import Workload

# in case the user's modules import the backend
_QUIET_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def _dry_run(workload: Workload, settings: TuneSettings) -> dict[str, str]:
    """Import the workload's functions without calling them; return the findings by subject, as for `check_file`."""
    from autofit.storage.connection import shown  # imported late, because it loads Optuna

    refuse_unsupported(workload)
    request = build_request(workload, settings, backends.named(workload.backend), *detect(settings))
    findings = {"model": request.call_source.model}
    for key, knobs in bind_all(workload, functools.partial(_resolved, workload.backend)).items():
        taken = ", ".join(knobs) or "no knobs (only arrays can be tuned without them, by their batch size)"
        findings[key] = f"{getattr(request.call_source, key)} takes {taken}"
        unknown = [knob for knob in settings.space.values() if knob not in knobs and knobs]
        if key == "data" and unknown and not isinstance(workload.data, tuple | list):
            raise UsageError(
                f"the data does not take this knob; it takes {taken}. Add a parameter {unknown[0]} to the data factory",
                key=f"space.{unknown[0]}",
            )
    device = request.limits.device_bytes
    limits = "no limit of its own" if device is None else format_bytes(device)
    findings["device"] = f"{request.placement.name}, {limits}"
    findings["host"] = f"{format_bytes(request.limits.host_bytes)} of {format_bytes(request.machine.memory_bytes)}"
    attributes = request.stored_attributes()
    state = "none" if attributes is None else "none, but there are trials of an earlier run"
    if attributes is not None and request.result_key() in attributes:
        state = "yes"
    findings["stored result"] = f"{state} ({shown(settings.storage)})"
    return findings


@contextlib.contextmanager
def _silenced(backend: str | None) -> Iterator[None]:
    """Silence stderr, hide the GPUs and select the backend of Keras while the user's modules are imported."""
    temporary = {**_QUIET_ENVIRONMENT, **({"KERAS_BACKEND": backend} if backend else {})}
    sys.stderr.flush()
    stderr, kept = os.dup(2), {name: os.environ[name] for name in temporary if name in os.environ}
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    os.environ.update(temporary)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        for name in temporary:
            os.environ.pop(name, None)
        os.environ.update(kept)


def _resolved(backend: str | None, key: str, part: Any) -> Any:
    try:
        with _silenced(backend):
            return resolve_reference(key, part)
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(f"while importing {part.text} for {key}", user_traceback(error)) from None


def check_file(path: str | os.PathLike[str], **overrides: Any) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Check that a YAML file can be tuned, by importing its functions without calling them.

    Return a pair for each cell of a sweep, or one pair for a tune: the cell's values by axis (empty for a tune), and the
    findings by subject (model, data, validation, device, host, stored result). `overrides` take precedence over the file.
    """
    with load.placing_errors(path, overrides):
        cells = [(values, load.overridden(arguments, overrides)) for values, arguments in load.load_cells(path)]
        for _, arguments in cells:
            arguments.pop(load.HOST_LABELS, None)
        return [(values, _dry_run(*parse(arguments))) for values, arguments in cells]
