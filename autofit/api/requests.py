"""Turn arguments into a request: validate them, detect the machine, choose the device, resolve the limits."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autofit import backends
from autofit.backends.keras_config import TENSORFLOW
from autofit.errors import UsageError
from autofit.machine import gpus, host, limits
from autofit.records.machine import Machine, Placement
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import TuneSettings
from autofit.workload import fit_options
from autofit.workload.call_source import call_source_of
from autofit.workload.fingerprint import fingerprint
from autofit.workload.inputs import prebuilt
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

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
    if isinstance(arguments.get("devices"), tuple):
        arguments = {**arguments, "devices": list(arguments["devices"])}
    settings = TuneSettings.of(**{name: arguments[name] for name in TuneSettings.model_fields if name in arguments})
    parts = {name: arguments[name] for name in _WORKLOAD_ARGUMENTS if arguments.get(name) is not None}
    parts["fit_kwargs"] = fit_options.validated(parts.get("fit_kwargs", {}))
    if fit_options.VALIDATION_SPLIT in parts["fit_kwargs"] and parts.get("validation") is not None:
        raise UsageError(
            "validation is given as well; `fit` takes one of both", key=f"fit_kwargs.{fit_options.VALIDATION_SPLIT}"
        )
    return Workload(**parts), settings


def build_request(
    workload: Workload, settings: TuneSettings, *, fresh: bool = False, on: tuple[Machine, Placement] | None = None
) -> TuneRequest:
    """Build the request: resolve the limits and fingerprint the workload.

    Args:
        workload: the user's model and data.
        settings: of the tune.
        fresh: whether to delete stored trials of the same request first.
        on: what `detected` has just returned; None to detect the machine now.

    Raises:
        UsageError: an argument is wrong.
        DeviceBusyError: the calling process itself holds the GPU.
    """
    refuse_unsupported(workload)
    machine, placement = on or detected(settings)
    for gpu in placement.gpus:
        gpus.require_free(gpu)
    identity, backend = fingerprint.identify(workload), backends.named(settings.backend)
    if placement.count > 1 and not backend.distribution:
        raise UsageError(
            f"training on several devices is not supported with Keras on {backend.name}, where each has a process of its "
            "own; on tensorflow and jax one `fit` trains on all",
            key="devices",
        )
    if placement.count > 1 and settings.effective_batch_size is not None and backend.name == TENSORFLOW:
        raise UsageError(
            f"Keras cannot accumulate gradients under a {backend.distribution}, where its optimizer fails; leave it out, "
            "or use jax",
            key="effective_batch_size",
        )
    present = settings.baseline.batch_size
    if present is not None and placement.shared(present) != present:
        raise UsageError(
            f"a batch of {present} cannot be shared evenly by {placement.count} devices: batch_size is global, of all "
            f"devices together; give a multiple of {placement.count}",
            key="baseline.batch_size",
        )
    memory = settings.device_memory, settings.host_memory
    on_each = [limits.resolve_limits(machine, gpu, *memory, backend.pool_bytes(gpu)) for gpu in placement.gpus or (None,)]
    limited = min(on_each, key=lambda found: found.device_bytes or 0)
    if not placement.gpus and limited.device_bytes is not None and not backend.limits_cpu:
        raise UsageError(
            f"Keras on {backend.name} cannot be limited on a CPU, where its memory is the host's; set host_memory instead",
            key="device_memory",
        )
    return TuneRequest(
        workload_fingerprint=identity.fingerprint,
        environment={**identity.versions, **backend.settings()},
        machine=machine,
        placement=placement,
        limits=limited,
        limits_asked=(str(settings.device_memory), str(settings.host_memory)),
        settings=settings,
        fresh=fresh,
        call_source=call_source_of(workload),
    )


def detected(settings: TuneSettings) -> tuple[Machine, Placement]:
    """The machine, and the devices to use.

    Raises:
        UsageError: there are none of that name or number.
    """
    machine = host.detect(gpus.nvidia_devices())
    return machine, gpus.choose_placement(machine, settings.device, settings.devices)


def refuse_unsupported(workload: Workload) -> None:
    """Check the form of what the user passed.

    Raises:
        UsageError: it is not supported.
    """
    build_model = workload.build_model
    if not callable(build_model) and not isinstance(build_model, Reference):
        raise UsageError(f"{build_model!r} is not a function; pass the function itself", key="build_model")
    for data in (workload.data, workload.validation):
        prebuilt.refuse_unsupported(data)
