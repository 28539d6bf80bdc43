"""Run a request: validate the arguments, detect the machine, start the launcher, run the engine, show its events."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from autofit import backends
from autofit.errors import UsageError
from autofit.machine import gpus, host, limits
from autofit.records.events import Emit
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher, ProcessLauncher
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import TuneSettings
from autofit.workload import fit_options
from autofit.workload import usage as usages
from autofit.workload.fingerprint import fingerprint
from autofit.workload.inputs import prebuilt
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

Returned = TypeVar("Returned")

_WORKLOAD_ARGUMENTS = tuple(field.name for field in fields(Workload))


def parse(arguments: Mapping[str, Any]) -> tuple[Workload, TuneSettings]:
    """Split arguments of `tune` into the workload and the settings.

    Raises:
        UsageError: an argument does not exist or its value is not allowed.
    """
    allowed = {*_WORKLOAD_ARGUMENTS, *TuneSettings.model_fields}
    for name in arguments:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"tune() has no such argument{hint}", key=name)
    settings = TuneSettings.of(**{name: arguments[name] for name in TuneSettings.model_fields if name in arguments})
    parts = {name: arguments[name] for name in _WORKLOAD_ARGUMENTS if arguments.get(name) is not None}
    parts["fit_kwargs"] = fit_options.validated(parts.get("fit_kwargs", {}))
    if fit_options.VALIDATION_SPLIT in parts["fit_kwargs"] and parts.get("validation") is not None:
        raise UsageError(
            "validation is given as well; `fit` takes one of both", key=f"fit_kwargs.{fit_options.VALIDATION_SPLIT}"
        )
    return Workload(**parts), settings


def progress_of(progress: bool | Progress) -> Progress:
    """The display to show events on, for an argument that says whether to show any."""
    return progress if isinstance(progress, Progress) else Progress(quiet=not progress)


def run(
    engine: Callable[[TuneRequest, Launcher, Emit], Returned],
    workload: Workload,
    settings: TuneSettings,
    progress: bool | Progress,
    *,
    fresh: bool = False,
    cancelled: threading.Event | None = None,
) -> Returned:
    """Run a part of the engine on a workload and show its events; returns what the engine returns.

    Args:
        engine: called with the request, a launcher, and a function that takes its events.
        workload: the user's model and data.
        settings: of the tune.
        progress: whether to show progress, or a `Progress` to show it on.
        fresh: whether to delete stored trials of the same request first.
        cancelled: stops the running trial and the engine when it is set.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        CancelledError: `cancelled` was set.
        AutofitError: what the engine raises.
    """
    request = build_request(workload, settings, fresh=fresh)
    shown = progress_of(progress)
    with ProcessLauncher(workload, request.device, settings.launch, cancelled) as launcher, shown:
        return engine(request, launcher, shown.show)


def build_request(workload: Workload, settings: TuneSettings, *, fresh: bool = False) -> TuneRequest:
    """Build the request: detect the machine, choose the device, resolve the limits, fingerprint the workload.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    build_model = workload.build_model
    if not callable(build_model) and not isinstance(build_model, Reference):
        raise UsageError(f"{build_model!r} is not a function; pass the function itself", key="build_model")
    for data in (workload.data, workload.validation):
        prebuilt.refuse_unsupported(data)
    machine = host.detect(gpus.nvidia_devices())
    device = gpus.choose_device(machine, settings.device)
    if device is not None:
        gpus.require_free(device)
    identity, backend = fingerprint.identify(workload), backends.current()
    memory = settings.device_memory, settings.host_memory
    return TuneRequest(
        workload_fingerprint=identity.fingerprint,
        environment={**identity.versions, **backend.settings()},
        machine=machine,
        device=device,
        limits=limits.resolve_limits(machine, device, *memory, backend.pool_bytes(device)),
        limits_asked=(str(settings.device_memory), str(settings.host_memory)),
        settings=settings,
        fresh=fresh,
        usage=usages.usage_of(workload),
    )
