"""From arguments to an answer: check them, look at this machine, start the trials' server, draw a loop to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from autofit import backends
from autofit.errors import UsageError
from autofit.machine import gpus, host, limits
from autofit.records.events import Event
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher, ProcessLauncher
from autofit.tuning import settings
from autofit.tuning.request import TuneRequest
from autofit.workload import usage as usages
from autofit.workload.fingerprint import fingerprint
from autofit.workload.inputs import prebuilt
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

Found = TypeVar("Found")


def run(
    loop: Callable[[TuneRequest, Launcher], Generator[Event, None, Found]],
    workload: Workload,
    progress: bool | Progress,
    *,
    fresh: bool = False,
    **asked: Any,
) -> Found:
    """Run a loop on a workload; returns what the loop returns.

    Args:
        loop: given the question and a launcher, yields events.
        workload: the user's model and data.
        progress: whether to show progress, or what to show it on.
        fresh: forget stored trials of the same question.
        asked: the other arguments of `tune`, as they were given; those left out have their defaults.

    Raises:
        UsageError: the arguments are wrong.
        DeviceBusyError: the calling process itself holds the GPU.
        AutofitError: what the loop raises.
    """
    request, launch = build_request(workload, fresh=fresh, asked=asked)
    shown = progress if isinstance(progress, Progress) else Progress(quiet=not progress)
    with ProcessLauncher(workload, request.device, launch) as launcher, shown:
        return _collect(loop(request, launcher), shown)


def build_request(workload: Workload, *, fresh: bool, asked: dict[str, Any]) -> tuple[TuneRequest, str]:
    """Check the arguments and look at this machine: (question, how to launch).

    Raises:
        UsageError: the arguments are wrong.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    build_model = workload.build_model
    if not callable(build_model) and not isinstance(build_model, Reference):
        raise UsageError(f"build_model: {build_model!r} is not a function; pass the function itself")
    checked = settings.check(dtype_policy=workload.dtype_policy, jit_compile=workload.jit_compile, **asked)
    del checked["dtype_policy"], checked["jit_compile"]
    for given in (workload.data, workload.validation):
        prebuilt.refuse_unsupported(given)
    here = host.detect(gpus.nvidia_devices())
    device = gpus.choose_device(here, checked.pop("device"))
    if device is not None:
        gpus.check_free(device)
    amounts = checked.pop("device_memory"), checked.pop("host_memory")
    launch = checked.pop("launch")
    known = fingerprint.identify(workload)
    request = TuneRequest(
        workload_fingerprint=known.fingerprint,
        settings={**known.versions, **backends.current().settings()},
        machine=here,
        device=device,
        limits=limits.resolve_limits(here, device, *amounts),
        limits_asked=(str(amounts[0]), str(amounts[1])),
        fresh=fresh,
        usage=usages.usage_of(workload),
        **checked,
    )
    return request, launch


def _collect(events: Generator[Event, None, Found], progress: Progress) -> Found:
    """Draw the loop's events, show each, and return what it returns."""
    try:
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                found: Found = end.value
                return found
            progress.show(event)
    finally:
        events.close()
