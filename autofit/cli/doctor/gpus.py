"""Checks of GPUs: which of them can be used, and how much of their memory is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.gpus import UnreadDevice
from autofit.records.machine import Device
from autofit.records.units import counted, format_bytes

_BUS_ORDER = "PCI_BUS_ID"
_LEAST_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB


def driver(
    visible: Sequence[Device | UnreadDevice],
    installed: Sequence[Device | UnreadDevice],
    unusable: str | None,
    environment: Mapping[str, str],
) -> Iterator[Finding]:
    """Check which GPUs can be used, and how much of their memory is free.

    `visible` are those `installed` GPUs that CUDA_VISIBLE_DEVICES selects. `unusable` says why a GPU cannot be used; None
    if there is no such GPU.
    """
    selection = environment.get("CUDA_VISIBLE_DEVICES", "")
    usable = any(isinstance(device, Device) for device in visible)
    if unusable is not None and not usable:
        yield problem("gpu", unusable, "Make nvidia-smi show the GPU and its memory, or set device: cpu.")
    elif not installed:
        yield ok("gpu", "the NVIDIA driver reports no GPU: trials run on the CPU")
    elif not visible:
        hidden = f"CUDA_VISIBLE_DEVICES={selection} hides {counted(len(installed), 'GPU')}: trials run on the CPU"
        yield warning("gpu", hidden, "Run unset CUDA_VISIBLE_DEVICES.")
    numbers = any(entry.strip().isdigit() for entry in selection.split(","))
    if numbers and len({device.name for device in installed}) > 1 and environment.get("CUDA_DEVICE_ORDER") != _BUS_ORDER:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={selection} is ambiguous: CUDA counts GPUs from the fastest, the driver by PCI bus",
            f"Run export CUDA_DEVICE_ORDER={_BUS_ORDER}, or name GPUs by UUID (nvidia-smi -L).",
        )
    for device in visible:
        if isinstance(device, Device):
            yield _memory(device)
        elif usable:
            detail = f"{device.name} is not used: the driver reports {device.problem!r} instead of its memory"
            yield warning(f"gpu:{device.index}", detail, "Make nvidia-smi show its memory, or set device: gpu:N.")


def _memory(device: Device) -> Finding:
    subject = f"gpu:{device.index}"
    detail = f"{device.name}, {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
    detail += f"; {', '.join(device.held_by)}" if device.held_by else ""
    end = "End these processes" if device.held_by else "End the processes that nvidia-smi lists"
    if device.free_bytes < _LEAST_BYTES:
        return problem(subject, detail, f"{end}, or select another GPU with device: gpu:N.")
    if device.free_bytes < device.total_bytes / 2:
        return warning(subject, detail, f"{end}, because device_memory is a share of the free memory.")
    return ok(subject, detail)
