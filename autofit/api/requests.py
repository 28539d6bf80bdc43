"""Turn arguments into a request: validate them, detect the machine, choose the device, resolve the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.backends.protocol import Backend
from autofit.errors import UsageError
from autofit.machine import gpus, host, limits
from autofit.records.machine import Machine, Placement
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import TuneSettings
from autofit.workload import fingerprint
from autofit.workload.arguments import collecting, no_such, raise_joined
from autofit.workload.call_source import call_source_of
from autofit.workload.fit_options import FIT
from autofit.workload.inputs import kinds, knobs
from autofit.workload.reference import Reference
from autofit.workload.workload import ARGUMENTS, Workload


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a function's arguments that are arguments of `tune` and describe what is tuned, and how."""
    return {name: value for name, value in given.items() if name in (*ARGUMENTS, *TuneSettings.model_fields)}


def parse(arguments: Mapping[str, Any]) -> tuple[Workload, TuneSettings]:
    """Split the arguments of `tune` into the workload and the settings; raise UsageError if any is not allowed."""
    allowed = (*ARGUMENTS, *TuneSettings.model_fields)
    errors = [UsageError(no_such(name, allowed), key=name) for name in arguments if name not in allowed]
    with collecting(errors):
        workload = Workload(**{name: value for name, value in arguments.items() if name in ARGUMENTS})
    with collecting(errors):
        settings = TuneSettings(**{name: arguments[name] for name in TuneSettings.model_fields if name in arguments})
    raise_joined(errors)
    return workload, settings


def detect(settings: TuneSettings) -> tuple[Machine, Placement]:
    """Detect the machine and choose the devices; raise UsageError if the requested devices cannot be used."""
    machine = host.detect(gpus.nvidia_devices())
    return machine, gpus.choose_placement(machine, settings.device)


def build_request(
    workload: Workload,
    settings: TuneSettings,
    backend: Backend,
    machine: Machine,
    placement: Placement,
) -> TuneRequest:
    """Check the workload and the settings against the machine, resolve the limits, and fingerprint the workload.

    `machine` is as `detect` returns it, with the memory that is free now. Raises UsageError, and DeviceBusyError if the
    calling process itself holds memory of the GPU.
    """
    for gpu in placement.gpus:
        gpus.require_free(gpu)
    if placement.count > 1 and (not backend.distribution or workload.call != FIT):
        raise UsageError(
            f"several devices can share the batches of fit with Keras on tensorflow or jax, not of {workload.call} on "
            f"{backend.name}; choose one device",
            key="device",
        )
    if workload.call != FIT and settings.effective_batch_size is not None:
        raise UsageError(f"{workload.call} updates no weights; remove effective_batch_size", key="effective_batch_size")

    present = settings.baseline.batch_size
    if present is not None and placement.shared(present) != present:
        raise UsageError(
            f"{placement.count} devices cannot share a batch of {present} evenly; give a multiple of {placement.count}",
            key="baseline.batch_size",
        )
    on_each = [
        limits.resolve_limits(machine, gpu, settings.device_memory, settings.host_memory, backend.pool_bytes(gpu))
        for gpu in placement.gpus or (None,)
    ]
    limited = min(on_each, key=lambda of_gpu: of_gpu.device_bytes or 0)
    if not placement.gpus and limited.device_bytes is not None and not backend.limits_cpu:
        raise UsageError(
            f"Keras on {backend.name} has no separate memory limit on a CPU, because it uses host memory there; "
            "set host_memory instead",
            key="device_memory",
        )
    identity = fingerprint.identify(workload)
    return TuneRequest(
        workload_fingerprint=identity.fingerprint,
        environment={**identity.versions, **backend.settings()},
        machine=machine,
        placement=placement,
        limits=limited,
        limits_asked=(str(settings.device_memory), str(settings.host_memory)),
        settings=settings,
        call_source=call_source_of(workload),
        sampler_key="" if settings.options.sampler is None else fingerprint.identity_of(settings.options.sampler),
    )


def refuse_unsupported(workload: Workload) -> None:
    """Raise UsageError if `build_model` is not a function or the data is of an unsupported kind."""
    build_model = workload.build_model
    if knobs.is_model(build_model):
        raise UsageError(
            f"{type(build_model).__name__} is a model; each trial builds its own, so pass a function that makes it:\n\n"
            "    def build_model():\n        model = ...\n        model.compile(...)\n        return model\n",
            key="build_model",
        )
    if not callable(build_model) and not isinstance(build_model, Reference):
        raise UsageError(f"{build_model!r} is not a function; pass the function itself", key="build_model")
    for data in (workload.data, workload.validation):
        kinds.refuse_unsupported(data)
