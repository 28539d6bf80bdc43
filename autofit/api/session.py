"""Run a request: wait for the device, look up a stored result, start the launcher, run the engine and show its events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from autofit import backends
from autofit.api.requests import build_request, detect, refuse_unsupported
from autofit.errors import UsageError
from autofit.machine import host
from autofit.machine.device_lock import DeviceLock
from autofit.records.events import Activity, Emit, Notice
from autofit.records.machine import Placement
from autofit.records.result import TuneRecord
from autofit.records.units import format_seconds
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher, ProcessLauncher
from autofit.tuning.request import TuneRequest, reuse
from autofit.tuning.settings import TuneSettings
from autofit.workload.call_source import call_source_of
from autofit.workload.workload import Workload

Returned = TypeVar("Returned")

_LOCK_POLL_SECONDS = 0.2


def progress_of(progress: bool | Progress) -> Progress:
    """Return `progress` if it is a display, or else a new display, which is quiet if `progress` is false."""
    return progress if isinstance(progress, Progress) else Progress(quiet=not progress)


def run(
    engine: Callable[[TuneRequest, Launcher, Emit], Returned],
    workload: Workload,
    settings: TuneSettings,
    progress: bool | Progress,
    *,
    known: Callable[[TuneRequest, Emit], Returned | None] | None = None,
) -> Returned:
    """Run a part of the engine that measures, show its events, and return its result.

    Only one autofit measures on a device at a time; this function waits for another one to finish. The arguments that are
    not listed here are those of `tune`.

    Args:
        engine: the part of the engine; called with the request, a launcher, and a function that receives events.
        known: function that returns a stored result, or None if there is none. A stored result is returned at once,
            without measuring or waiting.
    """
    refuse_unsupported(workload)
    backend, (machine, placement) = backends.named(workload.backend), detect(settings)
    shown = progress_of(progress)

    def look_up() -> tuple[TuneRequest, Returned | None]:
        request = build_request(workload, settings, backend, machine, placement)
        return request, None if known is None else known(request, shown.show)

    call_source = call_source_of(workload)
    purpose = f"{call_source.model.partition('(')[0]} with {call_source.data}"  # no arguments, which may be secret
    with DeviceLock(placement, purpose) as lock:
        if not lock.acquire():
            # a limit may be wrong only while another autofit holds the GPU's memory
            expected = [UsageError] if placement.gpus else []
            with contextlib.suppress(*expected):
                if (stored := look_up()[1]) is not None:
                    return stored
            if not settings.options.wait:
                raise lock.busy_error()
            with shown:
                _wait_for(lock, placement.name, shown.show)
            machine, placement = detect(settings)  # again, because the other autofit's memory is free now
        request, stored = look_up()
        if stored is not None:
            return stored
        work = list(_other_work(request.placement))  # listed before our own work begins
        with ProcessLauncher(workload, request.placement, settings.options.launch, backend) as launcher, shown:
            for text in work:
                shown.show(Notice(text))
            return engine(request, launcher, shown.show)


def run_tune(workload: Workload, settings: TuneSettings, progress: bool | Progress) -> TuneRecord:
    """Return the stored result of a tune if there is a valid one, or else tune. The arguments are those of `run`."""

    def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
        from autofit.tuning import engine  # loads Optuna and SciPy, which takes a second

        return engine.tune(request, launcher, emit)

    return run(tune, workload, settings, progress, known=reuse)


def _other_work(placement: Placement) -> Iterator[str]:
    for gpu in (gpu for gpu in placement.gpus if gpu.held_by):
        yield (
            f"other processes use {gpu.name}: {', '.join(gpu.held_by)}. If they compute, rates are lower than on a free "
            "GPU; if they allocate more memory, trials may run out of memory"
        )
    work = host.other_work()
    if work is not None:
        yield f"{work}\n    rates will be lower and less certain than on an idle machine; end that work first if you can"


def run_beside(
    engine: Callable[[TuneRequest, Launcher, Emit], Returned],
    workload: Workload,
    settings: TuneSettings,
    progress: bool | Progress,
) -> Returned:
    """Run a part of the engine that takes no timings, so do not wait for the device. The arguments are those of `run`."""
    refuse_unsupported(workload)
    backend, shown = backends.named(workload.backend), progress_of(progress)
    request = build_request(workload, settings, backend, *detect(settings))
    with ProcessLauncher(workload, request.placement, settings.options.launch, backend=backend) as launcher, shown:
        return engine(request, launcher, shown.show)


def _wait_for(lock: DeviceLock, device: str, emit: Emit) -> None:
    began = time.monotonic()
    emit(Activity(f"waiting for the {device}: another autofit is measuring on it ({lock.holder()})"))
    while not lock.acquire():
        time.sleep(_LOCK_POLL_SECONDS)
    emit(Notice(f"waited {format_seconds(time.monotonic() - began)} for another autofit; max_seconds starts now"))
