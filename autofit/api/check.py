"""`check_file`: a dry run that resolves every name, argument and limit without training."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from autofit import backends
from autofit.api.config import load
from autofit.api.session import build_request, detect
from autofit.errors import UsageError, UserCodeError
from autofit.records.units import format_bytes
from autofit.trial.worker.job import user_traceback
from autofit.tuning.cells import CellRequest
from autofit.workload.binding import bind_all, resolve_reference


def check_file(path: str | os.PathLike[str]) -> list[tuple[Mapping[str, Any], dict[str, str]]]:
    """Check that a YAML file can be tuned, by importing its functions without calling them.

    Return a pair for each cell of a sweep, or one pair for a tune: the cell's values by axis (empty for a tune), and the
    findings by subject (model, data, validation, device, host).
    """
    with load.placing_errors(path):
        return [(cell[0], _dry_run(load.cell_request(*cell))) for cell in load.load_cells(path)]


def _dry_run(cell: CellRequest) -> dict[str, str]:
    workload, settings = cell.workload, cell.settings
    request = build_request(workload, settings, backends.named(workload.backend), *detect(settings))
    findings = {"model": request.call_source.model}
    for key, knobs in bind_all(workload, functools.partial(_resolved, workload.backend)).items():
        names = ", ".join(knobs) or "no knobs (only arrays can be tuned without them, by their batch size)"
        findings[key] = f"{getattr(request.call_source, key)} takes {names}"
        unknown = [knob for knob in settings.space.values() if knob not in knobs and knobs]
        if key == "data" and unknown:
            remedy = f"it takes {names}. Add a parameter {unknown[0]} to the data factory"
            raise UsageError(f"the data does not take this knob; {remedy}", key=f"space.{unknown[0]}")
    device = request.limits.device_bytes
    return {
        **findings,
        "device": f"{request.placement.name}, {'no limit of its own' if device is None else format_bytes(device)}",
        "host": f"{format_bytes(request.limits.host_bytes)} of {format_bytes(request.machine.memory_bytes)}",
    }


def _resolved(backend: str | None, key: str, part: Any) -> Any:
    """Import a function, with GPUs and stderr hidden and the backend selected, because its module may import Keras."""
    from unittest.mock import patch  # which Keras loads, too

    switches = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **({"KERAS_BACKEND": backend} if backend else {})}
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with patch.dict(os.environ, switches), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)  # libraries in C++ do not write to sys.stderr
            return resolve_reference(key, part)
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(f"while importing {part.text} for {key}", user_traceback(error)) from None
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
