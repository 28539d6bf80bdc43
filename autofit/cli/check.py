"""`autofit check`: a dry run that resolves every name, argument and limit without training."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit import backends
from autofit.api.config import load
from autofit.api.session import build_request, detect
from autofit.api.tune_script import describe
from autofit.backends.protocol import Backend
from autofit.cli import common
from autofit.cluster.cells import CellRequest
from autofit.errors import UsageError, UserCodeError
from autofit.records.knobs import DATA_KNOBS
from autofit.records.machine import Placement
from autofit.records.units import format_bytes
from autofit.report.columns import cell_label
from autofit.report.console.tables import Terminal, two_columns
from autofit.trial.worker.job import user_traceback
from autofit.workload.binding import bind_all, resolve_reference


def check(
    file: common.ScriptOrFile = None,
    arguments: common.Arguments = None,
    module: common.Module = None,
    places: common.Places = None,
    fit: common.Fit = 0,
    writes: common.Writes = False,
) -> None:
    """Check a tuning file without running anything; or run a script once, and say what would be
    tuned.

    Of a file, checks the functions it names, the limits and the device: imports your modules, but
    calls none of their functions. For a sweep, checks every cell. A script runs once up to its call
    of fit, and does not train.
    """
    console = Terminal()
    with common.reporting_errors():
        asked = common.script_of(
            file, arguments, module, places, fit=fit, writes=writes
        )
        if asked is not None:
            console.print(two_columns(_first_run(asked).items()))
            return
        assert file is not None
        with load.placing_errors(file):
            cells = [
                (values, _dry_run(load.cell_request(values, given)))
                for values, given in load.load_cells(file)
            ]
        for number, (values, findings) in enumerate(cells, 1):
            if values:
                title = f"cell {number} of {len(cells)}: {cell_label(values)}"
                console.print(title, style="bold", markup=False)
            console.print(two_columns(findings.items()))
        console.print(
            f"\n{file} is valid; nothing was run", markup=False, soft_wrap=True
        )


def _first_run(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Run a script once, and return what would be tuned, where it is set, and what stands in the
    way.
    """
    described = describe(arguments)
    findings = {"script": f"{arguments['script']} calls fit at {described.fit_call}"}
    for knob, place in described.places.items():
        is_set = f"{place.value}, set by {place}"
        findings[knob] = f"added at {place}" if place.is_added else is_set
    for knob, reason in described.untuned.items():
        findings[f"not {knob}"] = reason
    if described.notices:
        findings["also"] = "; ".join(described.notices)
    return findings


def _dry_run(cell: CellRequest) -> dict[str, str]:
    workload = cell.workload
    settings = cell.settings
    script = workload.script
    if script is not None:
        return {"script": f"{script.command}; autofit check {script.name} runs it"}
    backend = backends.named(workload.backend)
    request = build_request(workload, settings, backend, *detect(settings))
    findings = {"model": request.call_source.model}
    resolve = functools.partial(_resolve, backend, request.placement)
    for key, knobs in bind_all(workload, resolve).items():
        names = ", ".join(knobs) or (
            "no knobs (only arrays can be tuned without them, by their batch size)"
        )
        findings[key] = f"{getattr(request.call_source, key)} takes {names}"
        # the other knobs of a space are attributes of the model, which any data can be tuned with
        asked = DATA_KNOBS if key == "data" and knobs else ()
        for knob in settings.space.values():
            if knob in asked and knob not in knobs:
                raise UsageError(
                    f"the data does not take this knob; it takes {names}. Add a parameter {knob} "
                    "to the data factory",
                    key=f"space.{knob}",
                )
    limits = request.limits
    device = "no limit of its own"
    if limits.device_bytes is not None:
        device = format_bytes(limits.device_bytes)
    whole = format_bytes(request.machine.memory_bytes)
    findings["device"] = f"{request.placement.name}, {device}"
    findings["host"] = f"{format_bytes(limits.host_bytes)} of {whole}"
    return findings


def _resolve(backend: Backend, placement: Placement, key: str, part: Any) -> Any:
    """Import a function as a trial would, but with GPUs and stderr hidden, because its module may
    import Keras.
    """
    # Keras loads it, too
    from unittest.mock import patch

    # without the folders of caches, which torch creates when it is imported
    environment = backend.environment(placement, Path(os.devnull)).items()
    switches = {
        name: value for name, value in environment if name not in backend.no_switches
    }
    switches |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with patch.dict(os.environ, switches), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)  # libraries in C++ do not write to sys.stderr
            with backend.refusing_late_switches():
                return resolve_reference(key, part)
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"while importing {part.text} for {key}", user_traceback(error)
        ) from None
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
