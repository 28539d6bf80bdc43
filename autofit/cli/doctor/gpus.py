"""Checks of GPUs: what the driver reports, free memory, and what TensorFlow sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autofit.backends.tensorflow.probe import BackendReport, ProbeFailure
from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.gpus import UnreadDevice
from autofit.records.distribution import install_command
from autofit.records.machine import Device
from autofit.records.units import counted, format_bytes, format_seconds

_BUS_ORDER = "PCI_BUS_ID"
_LEAST_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB
_MISSING_LIBRARIES = re.compile(
    r"Cannot dlopen some GPU libraries|Could not find cuda drivers|libcu\w+\.so|failed call to cuInit.*\(303\)"
)
_OLD_DRIVER = re.compile(r"driver version is insufficient|unsupported display driver|CUDA_ERROR_\w+")
_INSTALL = f"Run {install_command('gpu')}."


def driver(
    visible: Sequence[Device | UnreadDevice],
    installed: Sequence[Device | UnreadDevice],
    unusable: str | None,
    environment: Mapping[str, str],
) -> Iterator[Finding]:
    """Check which GPUs can be used, and the memory of each.

    Args:
        visible: the GPUs that CUDA_VISIBLE_DEVICES selects.
        installed: all GPUs.
        unusable: why a GPU that is present cannot be used; None if there is no such GPU.
        environment: environment variables.
    """
    selection = environment.get("CUDA_VISIBLE_DEVICES", "")
    usable = any(isinstance(device, Device) for device in visible)
    if unusable is not None and not usable:
        yield problem("gpu", unusable, "Make nvidia-smi show the GPU and its memory, or set device: cpu.")
    elif not installed:
        yield ok("gpu", "the NVIDIA driver reports none: trials run on the CPU")
    elif not visible:
        hidden = f"CUDA_VISIBLE_DEVICES={selection} hides {counted(len(installed), 'GPU')}: trials run on the CPU"
        yield warning("gpu", hidden, "Run unset CUDA_VISIBLE_DEVICES.")
    numbers = any(entry.strip().isdigit() for entry in selection.split(","))
    if numbers and len({device.name for device in installed}) > 1 and environment.get("CUDA_DEVICE_ORDER") != _BUS_ORDER:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={selection} is ambiguous: CUDA numbers the fastest GPU first, the driver by bus",
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
        return warning(subject, detail, f"{end}; device_memory is a share of the free memory.")
    return ok(subject, detail)


def tensorflow(report: BackendReport | ProbeFailure, visible: Sequence[Device | UnreadDevice]) -> Iterator[Finding]:
    """Compare the GPUs that TensorFlow sees with those that the driver reports."""
    if isinstance(report, ProbeFailure):
        yield _import_failure(report)
        return
    yield ok(
        "tensorflow",
        f"{report.tensorflow} with Keras {report.keras}, imported in {format_seconds(report.import_seconds)}; "
        f"built {'with' if report.built_with_cuda else 'without'} CUDA; sees {counted(len(report.gpus), 'GPU')}",
    )
    if visible and not report.gpus:
        yield problem("tensorflow", *_why_no_gpu(report))
    if report.gpus and not visible:
        yield warning(
            "tensorflow",
            f"sees {report.gpus[0]}, which the NVIDIA driver does not report: trials run on the CPU",
            "Set device: cpu; the result is valid for the CPU only.",
        )


def _import_failure(report: ProbeFailure) -> Finding:
    lines = f": {' / '.join(report.last_lines)}" if report.last_lines else ""
    detail = f"cannot be imported, {report.how}{lines}"
    if report.signal == "SIGILL":
        return problem("tensorflow", detail, "Use a machine whose CPU has AVX: TensorFlow's wheels require it.")
    command = 'python -c "import keras, tensorflow"'
    return problem("tensorflow", detail, f"Make {command} work; try a new environment and {install_command()}.")


def _why_no_gpu(report: BackendReport) -> tuple[str, str]:
    """Why TensorFlow sees no GPU, and what to do."""
    if not report.built_with_cuda:
        return "this build has no CUDA and cannot use the GPU", f"Run pip uninstall tensorflow-cpu. {_INSTALL}"
    for line in reversed(report.log.splitlines()):
        if match := _OLD_DRIVER.search(line):
            return f"sees no GPU; CUDA reports: {match[0]}", "Update the NVIDIA driver, and check that nvidia-smi works."
        if match := _MISSING_LIBRARIES.search(line):
            return f"sees no GPU: CUDA's libraries are missing ({match[0]})", _INSTALL
    return "sees no GPU and logs no reason", f"{_INSTALL} If that does not help, update the NVIDIA driver."
