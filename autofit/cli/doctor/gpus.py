"""GPUs: what the driver reports, who holds their memory, and what of them TensorFlow sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pynvml

from autofit.backends.tensorflow.probe import BackendReport, ProbeFailure
from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.gpus import UnreadDevice, mig_slice
from autofit.records.machine import Device
from autofit.records.units import counted, format_bytes, format_seconds

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"  # of PCI: the vendor, and what class numbers of graphics cards begin with
_BUS_ORDER = "PCI_BUS_ID"
_LEAST_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB

_MISSING_LIBRARIES = re.compile(r"Cannot dlopen some GPU libraries|Could not find cuda drivers|libcu\w+\.so")
_OLD_DRIVER = re.compile(r"driver version is insufficient|unsupported display driver|CUDA_ERROR_\w+")
_INSTALL = "Run pip install 'autofit[gpu]'."
_ANOTHER = "another GPU is named with device: gpu:N, the CPU with device: cpu"
_UNREAD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: f"A GPU that shares the host's memory is not supported yet: {_ANOTHER}.",
    pynvml.NVML_ERROR_NO_PERMISSION: f"Give the container a whole GPU, a MIG slice is not supported yet; {_ANOTHER}.",
    pynvml.NVML_ERROR_GPU_IS_LOST: f"Restart the machine; until then {_ANOTHER}.",
}


def on_bus(folder: Path = _PCI_DEVICES) -> bool:
    """Whether an NVIDIA graphics card is plugged in, driver or not."""
    for device in folder.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
            return True
    return False


def reported(
    visible: tuple[Device | UnreadDevice, ...],
    everything: tuple[Device | UnreadDevice, ...],
    environment: Mapping[str, str],
    *,
    plugged_in: bool,
) -> Iterator[Finding]:
    """What the NVIDIA driver reports, and the memory of each GPU.

    Args:
        visible: the GPUs that CUDA_VISIBLE_DEVICES leaves.
        everything: all GPUs.
        environment: the shell's.
        plugged_in: whether there is an NVIDIA card at all.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if not everything:
        if plugged_in:
            yield warning(
                "gpu",
                "an NVIDIA GPU is plugged in, but its driver does not answer",
                "Make nvidia-smi work: install the driver, or start the container with docker run --gpus all.",
            )
        else:
            yield ok("gpu", "none that the NVIDIA driver reports: trials run on the CPU")
    elif not visible and (part := mig_slice(environment)) is not None:
        yield problem(
            "gpu",
            f"CUDA_VISIBLE_DEVICES names {part}: MIG slices are not supported yet",
            "Say device: cpu, or name a whole GPU in CUDA_VISIBLE_DEVICES.",
        )
    elif not visible:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={named} hides all {len(everything)} of them: trials run on the CPU",
            "Run unset CUDA_VISIBLE_DEVICES.",
        )
    elif len(visible) < len(everything):
        yield ok("gpu", f"CUDA_VISIBLE_DEVICES={named} leaves {len(visible)} of {len(everything)}")
    numbers = any(entry.strip().isdigit() for entry in (named or "").split(","))
    if numbers and len({device.name for device in everything}) > 1 and environment.get("CUDA_DEVICE_ORDER") != _BUS_ORDER:
        yield warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={named} means another GPU to CUDA, which counts the fastest first, than to the driver",
            f"Run export CUDA_DEVICE_ORDER={_BUS_ORDER}, or name GPUs by UUID (nvidia-smi -L).",
        )
    for device in visible:
        yield _memory(device) if isinstance(device, Device) else _unread(device)


def _unread(device: UnreadDevice) -> Finding:
    remedy = _UNREAD.get(device.code, f"Make nvidia-smi show its memory; until then {_ANOTHER}.")
    return warning(
        f"gpu:{device.index}",
        f"{device.name}, left out of every tune: asked for its memory, the driver says {device.problem!r}",
        remedy,
    )


def _memory(device: Device) -> Finding:
    subject, held = f"gpu:{device.index}", f"; {', '.join(device.held_by)}" if device.held_by else ""
    free = f"{format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
    detail = f"{device.name}, {free}{held}"
    who = "the processes named" if device.held_by else "the processes that nvidia-smi lists"
    if device.free_bytes < _LEAST_BYTES:
        return problem(subject, detail, f"End {who}, or name another GPU with device: gpu:N.")
    if device.free_bytes < device.total_bytes / 2:
        return warning(subject, detail, f"End {who}; device_memory is a share of what is free.")
    return ok(subject, detail)


def seen(
    report: BackendReport | ProbeFailure, visible: tuple[Device | UnreadDevice, ...], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """What TensorFlow sees, against what the driver reports."""
    if isinstance(report, ProbeFailure):
        yield _unseen(report)
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
            f"sees {report.gpus[0].name}, which no NVIDIA driver reports: trials run on the CPU",
            "Say device: cpu, and read the result as one for the CPU.",
        )
    for gpu in report.gpus if visible else ():
        yield from _kernels(gpu.name, gpu.compute_capability, report)
        yield _growth(gpu.memory_growth, environment)


def _unseen(report: ProbeFailure) -> Finding:
    lines = f": {' / '.join(report.last_lines)}" if report.last_lines else ""
    detail = f"cannot be imported, {report.how}{lines}"
    if report.signal == "SIGILL":
        return problem("tensorflow", detail, "Use a machine whose CPU has AVX: TensorFlow's wheels are built for it.")
    command = 'python -c "import keras, tensorflow"'
    return problem("tensorflow", detail, f"Make {command} work; most often a fresh environment does: pip install autofit.")


def _why_no_gpu(report: BackendReport) -> tuple[str, str]:
    """Why TensorFlow sees no GPU, and what to do."""
    if not report.built_with_cuda:
        return "this build has no CUDA, so that it cannot use the GPU", f"Run pip uninstall tensorflow-cpu. {_INSTALL}"
    for line in reversed(report.log.splitlines()):
        if found := _OLD_DRIVER.search(line):
            return f"sees no GPU; CUDA says: {found[0]}", "Update the NVIDIA driver, and see that nvidia-smi works."
        if found := _MISSING_LIBRARIES.search(line):
            return f"sees no GPU, for want of CUDA's libraries ({found[0]})", _INSTALL
    return "sees no GPU, and does not say why", f"{_INSTALL} If it is so, update the NVIDIA driver."


def _kernels(name: str, capability: tuple[int, int] | None, report: BackendReport) -> Iterator[Finding]:
    """A GPU that is newer than what TensorFlow was built for.

    Its kernels are then compiled at their first use, for up to half an hour, as TensorFlow itself says; with compute
    capability 12.0, TensorFlow 2.19 and 2.20 are reported to fail with CUDA_ERROR_INVALID_PTX.
    """
    built_for = [int(number) for kernel in report.kernels if (number := kernel.partition("_")[2]).isdigit()]
    if capability is None or not built_for or capability[0] * 10 + capability[1] <= max(built_for):
        return
    yield warning(
        "tensorflow",
        f"has no kernels for {name} (compute capability {capability[0]}.{capability[1]}): it compiles them at their first "
        "use, which takes up to half an hour, or fails with CUDA_ERROR_INVALID_PTX",
        "Use a TensorFlow that is built for this GPU: a newer one, or NVIDIA's own container.",
    )


def _growth(configured: bool | None, environment: Mapping[str, str]) -> Finding:
    forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if forced in ("true", "false"):
        says = f"{'on' if forced == 'true' else 'off'}, by TF_FORCE_GPU_ALLOW_GROWTH"
    else:
        says = "on" if configured else "off: outside of autofit, TensorFlow takes the whole GPU at its start"
    return ok("memory growth", f"{says}; a trial has its limit either way")
