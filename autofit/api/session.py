"""From a call to a run: its arguments, the device and its limits, the wait for it, the events."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from autofit import backends
from autofit.backends.protocol import Backend
from autofit.errors import AutofitError, Problem, UsageError
from autofit.machine import gpus, host, limits
from autofit.machine.device_lock import DeviceLock
from autofit.records.events import Activity, Emit
from autofit.records.machine import Machine, Placement
from autofit.records.result import TuneRecord
from autofit.records.units import format_seconds
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher, ProcessLauncher
from autofit.tuning.request import TuneRequest, compiled_folder, reuse
from autofit.tuning.settings import TuneSettings
from autofit.workload.arguments import collecting, no_such, raise_joined
from autofit.workload.binding import call_source_of
from autofit.workload.fingerprint import identify
from autofit.workload.fit_options import FIT
from autofit.workload.inputs import kinds
from autofit.workload.inputs.knobs import has_base
from autofit.workload.program import require_distribution
from autofit.workload.reference import Reference
from autofit.workload.script import ARGUMENTS as SCRIPT_ARGUMENTS
from autofit.workload.script import Script, identity, make_script
from autofit.workload.workload import ARGUMENTS, Workload

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
# of the arguments of `tune` and `tune_script` that files have, too
NAMES = (*ARGUMENTS, *SCRIPT_ARGUMENTS, *TuneSettings.model_fields)
_LOCK_POLL_SECONDS = 0.2


def without_frames(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Leave autofit's own frames out of the tracebacks of its errors."""

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except AutofitError as error:
            raise error.with_traceback(None) from error.__cause__

    return call


def explain_calls(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Turn a call with wrong arguments into a UsageError, without autofit's own frames."""
    signature = inspect.signature(function)
    spec = inspect.getfullargspec(function)
    names = (*spec.args, *spec.kwonlyargs)

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        unknown = [] if spec.varkw else [name for name in kwargs if name not in names]
        raise_joined([Problem(no_such(name, names), name) for name in unknown])
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            form = f"{function.__name__}({', '.join(spec.args)}, ...)"
            raise UsageError(
                f"{error}; call {form}, with arrays as data=(x, y) and other arguments by name"
            ) from None
        return function(*args, **kwargs)

    return without_frames(call)


def parse(arguments: Mapping[str, Any]) -> tuple[Workload, TuneSettings]:
    """Split the arguments of `tune` into the workload and the settings.

    Raise one UsageError with all that is wrong.
    """
    problems = [
        Problem(no_such(name, NAMES), name) for name in arguments if name not in NAMES
    ]
    with collecting(problems):
        make_workload = _of_script if "script" in arguments else _of_functions
        workload = make_workload(arguments)
    with collecting(problems):
        settings = TuneSettings(**_given(TuneSettings.model_fields, arguments))
    raise_joined(problems)
    if workload.script is not None and settings.effective_batch_size is not None:
        raise UsageError(
            "a script sets its optimizer itself; remove it", key="effective_batch_size"
        )
    return workload, settings


def _given(names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


def _of_script(arguments: Mapping[str, Any]) -> Workload:
    for name in ARGUMENTS:
        if arguments.get(name) is not None and name != "backend":
            raise UsageError(
                "is not allowed with a script, which sets it itself", key=name
            )
    given = _given(SCRIPT_ARGUMENTS, arguments)
    script = given["script"]
    script = script if isinstance(script, Script) else make_script(**given)
    backend: Any = arguments.get("backend") or script.backend()
    return Workload(None, None, script=script, backend=backend)


def _of_functions(arguments: Mapping[str, Any]) -> Workload:
    workload = Workload(**_given(ARGUMENTS, arguments))
    build_model = workload.build_model
    if has_base(build_model, ("keras.", "tf_keras."), "Model"):
        raise UsageError(
            f"{type(build_model).__name__} is a model; each trial builds its own: pass a function "
            "that returns one",
            key="build_model",
        )
    if not callable(build_model) and not isinstance(build_model, Reference):
        is_text = isinstance(build_model, str)
        given = repr(build_model) if is_text else type(build_model).__name__
        raise UsageError(
            f"{given} is not a function; pass the function that returns a model, itself",
            key="build_model",
        )
    for data in (workload.data, workload.validation):
        kinds.refuse_unsupported(data)
    return workload


def detect(settings: TuneSettings) -> tuple[Machine, Placement]:
    """Detect the machine and choose the devices; raise UsageError if they cannot be used."""
    machine = host.detect(gpus.nvidia_devices())
    return machine, gpus.choose_placement(machine, settings.device)


def build_request(
    workload: Workload,
    settings: TuneSettings,
    backend: Backend,
    machine: Machine,
    placement: Placement,
) -> TuneRequest:
    """Check what is asked against the machine, resolve the limits, and fingerprint the workload."""
    for gpu in placement.gpus:
        gpus.require_free(gpu)
    if placement.count > 1 and (not backend.distribution or workload.call != FIT):
        able = " or ".join(
            name for name, each in backends.BACKENDS.items() if each.distribution
        )
        raise UsageError(
            f"several devices can share the batches of fit with Keras on {able}, not of "
            f"{workload.call} on {backend.name}; choose one device",
            key="device",
        )
    require_distribution(placement.count)
    if workload.call != FIT and settings.effective_batch_size is not None:
        raise UsageError(
            f"{workload.call} updates no weights; remove effective_batch_size",
            key="effective_batch_size",
        )
    present = settings.baseline.values().get("batch_size")
    if present is not None and placement.shared(present) != present:
        raise UsageError(
            f"{placement.count} devices cannot share a batch of {present} evenly; give a multiple "
            f"of {placement.count}",
            key="baseline.batch_size",
        )
    on_each = [
        limits.resolve_limits(
            machine,
            gpu,
            settings.device_memory,
            settings.host_memory,
            backend.pool_bytes(gpu),
        )
        for gpu in placement.gpus or (None,)
    ]
    least = min(on_each, key=lambda of_device: of_device.device_bytes or 0)
    if not placement.gpus and least.device_bytes is not None and not backend.limits_cpu:
        raise UsageError(
            f"Keras on {backend.name} has no separate memory limit on a CPU, because it uses host "
            "memory there; set host_memory instead",
            key="device_memory",
        )
    sampler = settings.options.sampler
    parts = vars(workload)
    if workload.script is not None:
        key = identity.key_of(workload.script)
        parts = {"script": key, "backend": workload.backend}
    return TuneRequest(
        workload_fingerprint=identify(**parts),
        environment=backend.settings(),
        machine=machine,
        placement=placement,
        limits=least,
        settings=settings,
        call_source=call_source_of(workload),
        script=workload.script,
        sampler_key="" if sampler is None else identify(sampler=sampler),
    )


def progress_of(progress: bool | Progress) -> Progress:
    """Return `progress` if it is a display, or else a new one, quiet if `progress` is false."""
    return progress if isinstance(progress, Progress) else Progress(quiet=not progress)


def run_tune(
    workload: Workload, settings: TuneSettings, progress: bool | Progress
) -> TuneRecord:
    """Return the stored result of a tune if there is a valid one, or else tune."""

    def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
        # loads Optuna and SciPy, which takes a second
        from autofit.tuning import engine

        return engine.tune(request, launcher, emit)

    return run(tune, workload, settings, progress, is_stored=True)


def run(
    engine: Callable[[TuneRequest, Launcher, Emit], Returned],
    workload: Workload,
    settings: TuneSettings,
    progress: bool | Progress,
    *,
    is_stored: bool = False,
    is_timed: bool = True,
) -> Returned:
    """Run a part of the engine, show its events, and return its result.

    With `is_stored`, a stored result is returned without waiting, and what trials compile is kept.
    With `is_timed`, wait until no other autofit measures on the
    device, because only one takes timings there at a time.
    """
    backend = backends.named(workload.backend)
    shown = progress_of(progress)
    machine, placement = detect(settings)

    def look_up() -> tuple[TuneRequest, Returned | None]:
        request = build_request(workload, settings, backend, machine, placement)
        # of a tune, what its engine would return
        stored: Any = reuse(request, shown.show) if is_stored else None
        return request, stored

    source = call_source_of(workload)
    # no arguments, which may be secret
    purpose = f"{source.model.partition('(')[0]} with {source.data}"
    purpose = source.model if source.script else purpose
    with DeviceLock(placement, purpose) as lock:
        if is_timed and not lock.acquire():
            # a limit may be wrong only while another autofit holds the GPU's memory
            with contextlib.suppress(*[UsageError] if placement.gpus else []):
                _, stored = look_up()
                if stored is not None:
                    return stored
            if not settings.options.wait:
                raise lock.busy_error()
            with shown:
                _wait_for(lock, placement.name, shown.show)
            # again, because the other autofit's memory is free now
            machine, placement = detect(settings)
        request, stored = look_up()
        if stored is not None:
            return stored
        # listed before our own work begins
        work = list(_other_work(placement)) if is_timed else []
        compiled = compiled_folder(request) if is_stored else None
        launcher = ProcessLauncher(
            workload, placement, settings.options.launch, compiled
        )
        with launcher, shown:
            for text in work:
                shown.show(text)
            return engine(request, launcher, shown.show)


def _wait_for(lock: DeviceLock, device: str, emit: Emit) -> None:
    began = time.monotonic()
    holder = lock.holder()
    emit(
        Activity(
            f"waiting for the {device}: another autofit is measuring on it ({holder})"
        )
    )
    while not lock.acquire():
        time.sleep(_LOCK_POLL_SECONDS)
    waited = format_seconds(time.monotonic() - began)
    emit(f"waited {waited} for another autofit; max_seconds starts now")


def _other_work(placement: Placement) -> Iterator[str]:
    for gpu in placement.gpus:
        if gpu.held_by:
            yield (
                f"other processes use {gpu.name}: {', '.join(gpu.held_by)}. If they compute, rates "
                "are lower than on a free GPU; if they allocate more memory, trials may run out of "
                "memory"
            )
    if work := host.other_work():
        yield (
            f"{work}\n    rates will be lower and less certain than on an idle machine; end that "
            "work first if you can"
        )
