"""Run a request: validate the arguments, detect the machine, start the launcher, run the engine, show its events."""

from __future__ import annotations

import contextlib
import difflib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from autofit import backends
from autofit.errors import CancelledError, DeviceLockedError, UsageError
from autofit.machine import gpus, host, limits, load
from autofit.machine.device_lock import DeviceLock
from autofit.records.events import Activity, Emit, Event, Notice
from autofit.records.machine import Device, Machine
from autofit.records.units import format_seconds
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
_LOCK_POLL_SECONDS = 0.2


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
    wait: bool = True,
    known: Callable[[TuneRequest, Emit], Returned | None] | None = None,
) -> Returned:
    """Run a part of the engine that measures, and show its events; returns what the engine returns.

    One measurement runs on a device: another autofit on it is waited for.

    Args:
        engine: called with the request, a launcher, and a function that takes its events.
        workload: the user's model and data.
        settings: of the tune.
        progress: whether to show progress, or a `Progress` to show it on.
        fresh: whether to delete stored trials of the same request first.
        cancelled: stops the running trial and the engine when it is set.
        wait: whether to wait for another autofit; otherwise that is an error.
        known: returns what need not be measured, to do without waiting; None where it must be.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        DeviceLockedError: another autofit measures on the device.
        CancelledError: `cancelled` was set.
        AutofitError: what the engine raises.
    """
    _refuse_unsupported(workload)
    device, shown = _detected(settings)[1], progress_of(progress)
    cancelled = cancelled or threading.Event()
    with DeviceLock(device, _purpose(workload)) as lock:
        is_free = lock.acquire()
        # while somebody else has the GPU's memory, no limit may be right
        with contextlib.suppress(*([] if is_free or device is None else [UsageError])):
            request = build_request(workload, settings, fresh=fresh)
            if known is not None and (stored := _announced(known, request, shown)) is not None:
                return stored
        if not is_free:
            name = device.name if device else "CPU"
            if not wait:
                raise DeviceLockedError(name, lock.holder())
            with shown:
                _wait_for(lock, name, shown.show, cancelled)
            request = build_request(workload, settings, fresh=fresh)
        with ProcessLauncher(workload, request.device, settings.launch, cancelled) as launcher, shown:
            for text in _other_work(request.device):
                shown.show(Notice(text))
            return engine(request, launcher, shown.show)


def _announced(
    known: Callable[[TuneRequest, Emit], Returned | None], request: TuneRequest, shown: Progress
) -> Returned | None:
    """Return what is known, and show its events only if it is."""
    events: list[Event] = []
    try:
        return known(request, events.append)
    finally:
        if events:
            with shown:
                for event in events:
                    shown.show(event)


def _other_work(device: Device | None) -> Iterator[str]:
    """What disturbs the measurement before it has begun."""
    if device is not None and device.held_by:
        yield (
            f"others use {device.name}, too: {', '.join(device.held_by)}. If they compute, rates are lower than on a free "
            "GPU; if they take more memory, trials run out of it"
        )
    work = load.other_work()
    if work is not None:
        yield f"{work}\n    rates will be lower than on an idle machine, and less certain: end it first if you can"


def run_beside(
    engine: Callable[[TuneRequest, Launcher, Emit], Returned],
    workload: Workload,
    settings: TuneSettings,
    progress: bool | Progress,
) -> Returned:
    """Run a part of the engine that times nothing, whoever measures on the device; see `run`."""
    request, shown = build_request(workload, settings), progress_of(progress)
    with ProcessLauncher(workload, request.device, settings.launch) as launcher, shown:
        return engine(request, launcher, shown.show)


def _wait_for(lock: DeviceLock, device: str, emit: Emit, cancelled: threading.Event) -> None:
    """Wait until the lock is taken.

    Raises:
        CancelledError: `cancelled` was set.
    """
    began = time.monotonic()
    emit(Activity(f"waiting until the {device} is free: another autofit measures on it ({lock.holder()})"))
    while not lock.acquire():
        if cancelled.wait(_LOCK_POLL_SECONDS):
            raise CancelledError("the tune was cancelled")
    emit(Notice(f"waited {format_seconds(time.monotonic() - began)} for another autofit; max_seconds counts from now"))


def _purpose(workload: Workload) -> str:
    """What is measured, for those who wait: names alone, as arguments may be secret."""
    usage = usages.usage_of(workload)
    return f"{usage.model.partition('(')[0]} with {usage.data}"


def build_request(workload: Workload, settings: TuneSettings, *, fresh: bool = False) -> TuneRequest:
    """Build the request: detect the machine, choose the device, resolve the limits, fingerprint the workload.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    _refuse_unsupported(workload)
    machine, device = _detected(settings)
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


def _detected(settings: TuneSettings) -> tuple[Machine, Device | None]:
    """The machine, and the accelerator to use.

    Raises:
        UsageError: there is none of that name.
    """
    machine = host.detect(gpus.nvidia_devices())
    return machine, gpus.choose_device(machine, settings.device)


def _refuse_unsupported(workload: Workload) -> None:
    """Check the form of what the user passed.

    Raises:
        UsageError: it is not supported.
    """
    build_model = workload.build_model
    if not callable(build_model) and not isinstance(build_model, Reference):
        raise UsageError(f"{build_model!r} is not a function; pass the function itself", key="build_model")
    for data in (workload.data, workload.validation):
        prebuilt.refuse_unsupported(data)
