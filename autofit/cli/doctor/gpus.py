"""Checks of GPUs: what the driver reports, free memory, and why TensorFlow does not see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.machine.gpus import UnreadDevice
from autofit.records.distribution import install_command
from autofit.records.machine import Device
from autofit.records.units import counted, format_bytes

_BUS_ORDER = "PCI_BUS_ID"
_LEAST_BYTES = 2**30  # CUDA's context and libraries alone take hundreds of MiB
_MISSING_LIBRARIES = re.compile(
    r"Cannot dlopen some GPU libraries|Could not find cuda drivers|libcu\w+\.so|failed call to cuInit.*\(303\)"
)
_OLD_DRIVER = re.compile(r"driver version is insufficient|unsupported display driver|CUDA_ERROR_\w+")
_LIST_GPUS = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
print(tf.test.is_built_with_cuda(), len(gpus))
"""
_IMPORT_SECONDS = 120.0  # importing TensorFlow from a cold disk takes half a minute
_INSTALL = f"Run {install_command('gpu')}."


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


@dataclass(frozen=True)
class TensorFlowView:
    """The number of GPUs that TensorFlow sees, and its log, as read in a separate process."""

    built_with_cuda: bool
    gpu_count: int
    log: str

    @classmethod
    def read(cls) -> TensorFlowView | None:
        """Import TensorFlow in a separate process and list its GPUs; return None if that fails."""
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
        command, folder = [sys.executable, "-c", _LIST_GPUS], "/"  # not the working directory, which may hold user modules
        try:
            process = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, timeout=_IMPORT_SECONDS, check=True
            )
        except subprocess.SubprocessError:
            return None
        built_with_cuda, count = process.stdout.decode().split()[-2:]
        return cls(built_with_cuda == "True", int(count), process.stderr.decode(errors="replace"))


def unseen_by_tensorflow(view: TensorFlowView | None) -> Iterator[Finding]:
    """Explain why TensorFlow sees no GPU although the driver reports one; yield nothing if it sees one or was not read."""
    if view is None or view.gpu_count:
        return
    detail, remedy = "sees no GPU and logs no reason", f"{_INSTALL} If that does not help, update the NVIDIA driver."
    if not view.built_with_cuda:
        detail, remedy = "this build has no CUDA and cannot use a GPU", f"Run pip uninstall tensorflow-cpu. {_INSTALL}"
    for line in view.log.splitlines() if view.built_with_cuda else ():  # the last reason is the most specific
        if match := _OLD_DRIVER.search(line):
            detail = f"sees no GPU; CUDA reports: {match[0]}"
            remedy = "Update the NVIDIA driver, and check that nvidia-smi works."
        elif match := _MISSING_LIBRARIES.search(line):
            detail, remedy = f"sees no GPU: CUDA's libraries are missing ({match[0]})", _INSTALL
    yield problem("tensorflow", detail, remedy)
