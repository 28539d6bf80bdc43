"""Checks of GPUs: the driver's report, free memory, and what TensorFlow sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pynvml

from autofit.backends.tensorflow.probe import BackendReport, ProbeFailure
from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.gpus import UnreadDevice, mig_slice
from autofit.records.distribution import install_command
from autofit.records.machine import Device
from autofit.records.units import counted, format_bytes, format_seconds

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"  # PCI vendor, and prefix of the class numbers of graphics cards
_BUS_ORDER = "PCI_BUS_ID"
_LEAST_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB

_MISSING_LIBRARIES = re.compile(
    r"Cannot dlopen some GPU libraries|Could not find cuda drivers|libcu\w+\.so|failed call to cuInit.*\(303\)"
)
_OLD_DRIVER = re.compile(r"driver version is insufficient|unsupported display driver|CUDA_ERROR_\w+")
_INSTALL = f"Run {install_command('gpu')}."
_OTHERWISE = "or set device: gpu:N or device: cpu"
_UNREAD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "Set device: gpu:N or device: cpu; GPUs with shared memory are not supported yet.",
    pynvml.NVML_ERROR_NO_PERMISSION: f"Name a MIG slice in CUDA_VISIBLE_DEVICES, {_OTHERWISE}.",
    pynvml.NVML_ERROR_GPU_IS_LOST: f"Restart the machine, {_OTHERWISE}.",
}


def on_bus(folder: Path = _PCI_DEVICES) -> bool:
    """Whether an NVIDIA graphics card is plugged in, with or without a driver."""
    for device in folder.glob("*"):
        try:
            vendor, pci_class = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        if vendor == _NVIDIA and pci_class.startswith(_DISPLAY_CLASS):
            return True
    return False


def driver(
    visible: tuple[Device | UnreadDevice, ...],
    installed: tuple[Device | UnreadDevice, ...],
    environment: Mapping[str, str],
    *,
    plugged_in: bool,
) -> Iterator[Finding]:
    """Check the NVIDIA driver's report and the memory of each GPU.

    Args:
        visible: the GPUs that CUDA_VISIBLE_DEVICES selects.
        installed: all GPUs.
        environment: environment variables.
        plugged_in: whether an NVIDIA card is plugged in.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if not installed:
        if plugged_in:
            yield warning(
                "gpu",
                "an NVIDIA GPU is plugged in, but its driver does not answer",
                "Make nvidia-smi work: install the driver, or start the container with docker run --gpus all.",
            )
        else:
            yield ok("gpu", "the NVIDIA driver reports none: trials run on the CPU")
    elif not visible and (part := mig_slice(environment)) is not None:
        yield problem(
            "gpu",
            f"CUDA_VISIBLE_DEVICES names {part}, a MIG slice that the driver does not report",
            "Name one that nvidia-smi -L lists, or set device: cpu.",
        )
    elif not visible:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={named} hides {counted(len(installed), 'GPU')}: trials run on the CPU",
            "Run unset CUDA_VISIBLE_DEVICES.",
        )
    elif len(visible) < len(installed):
        yield ok("gpu", f"CUDA_VISIBLE_DEVICES={named} selects {len(visible)} of {len(installed)}")
    numbers = any(entry.strip().isdigit() for entry in (named or "").split(","))
    if numbers and len({device.name for device in installed}) > 1 and environment.get("CUDA_DEVICE_ORDER") != _BUS_ORDER:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={named} is ambiguous: CUDA numbers the fastest GPU first, the driver by bus",
            f"Run export CUDA_DEVICE_ORDER={_BUS_ORDER}, or name GPUs by UUID (nvidia-smi -L).",
        )
    for device in visible:
        yield _memory(device) if isinstance(device, Device) else _unread(device)


def _unread(device: UnreadDevice) -> Finding:
    remedy = _UNREAD.get(device.code, f"Make nvidia-smi show its memory, {_OTHERWISE}.")
    return warning(
        f"gpu:{device.index}",
        f"{device.name} is not used: the driver reports {device.problem!r} instead of its memory",
        remedy,
    )


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


def tensorflow(
    report: BackendReport | ProbeFailure, visible: tuple[Device | UnreadDevice, ...], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Compare the GPUs that TensorFlow sees with those that the driver reports."""
    if isinstance(report, ProbeFailure):
        yield _import_failure(report)
        return
    yield ok(
        "tensorflow",
        f"{report.tensorflow} with Keras {report.keras}, imported in {format_seconds(report.import_seconds)}; "
        f"built {'with' if report.built_with_cuda else 'without'} CUDA; sees "
        f"{counted(len(report.gpus), 'GPU')}",
    )
    if visible and not report.gpus:
        yield problem("tensorflow", *_why_no_gpu(report))
    if report.gpus and not visible and mig_slice(environment) is None:
        yield warning(
            "tensorflow",
            f"sees {report.gpus[0].name}, which the NVIDIA driver does not report: trials run on the CPU",
            "Set device: cpu; the result is valid for the CPU only.",
        )
    for gpu in report.gpus if visible else ():
        yield from _kernels(gpu.name, gpu.compute_capability, report)
        yield _growth(gpu.memory_growth, environment)


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


def _kernels(name: str, capability: tuple[int, int] | None, report: BackendReport) -> Iterator[Finding]:
    """Check that TensorFlow was built for this GPU.

    TensorFlow compiles missing kernels on first use, for up to half an hour by its own message; with compute capability
    12.0, TensorFlow 2.19 and 2.20 are reported to fail with CUDA_ERROR_INVALID_PTX.
    """
    built_for = [(kind, int(number)) for kind, _, number in (k.partition("_") for k in report.kernels) if number.isdigit()]
    if capability is None or not built_for:
        return
    major, mine = capability[0], capability[0] * 10 + capability[1]
    if mine <= max(number for _, number in built_for):
        if not any(kind == "sm" and number // 10 == major and number <= mine for kind, number in built_for):
            yield ok(
                "tensorflow",
                f"has no machine code for {name} (compute capability {major}.{capability[1]}): CUDA compiles it at first "
                "use, which takes minutes, and keeps it in CUDA_CACHE_PATH (~/.nv/ComputeCache)",
            )
        return
    yield warning(
        "tensorflow",
        f"has no kernels for {name} (compute capability {capability[0]}.{capability[1]}): it compiles them on first use, "
        "which takes up to half an hour, or fails with CUDA_ERROR_INVALID_PTX",
        "Use a TensorFlow built for this GPU: a newer release, or NVIDIA's container.",
    )


def _growth(configured: bool | None, environment: Mapping[str, str]) -> Finding:
    forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if forced in ("true", "false"):
        state = f"{'on' if forced == 'true' else 'off'}, set by TF_FORCE_GPU_ALLOW_GROWTH"
    else:
        state = "on" if configured else "off: outside autofit, TensorFlow takes the whole GPU when it starts"
    return ok("memory growth", f"{state}; trials have their own limit")
