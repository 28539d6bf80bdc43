"""The accelerators of this host, as the NVIDIA driver reports them, and who holds their memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml

from autofit.errors import DeviceBusyError, UsageError
from autofit.records import Device, Machine
from autofit.units import format_bytes

_CUDA_FILE = "/dev/nvidia-uvm"  # opened when a process starts CUDA, not by asking the driver


def choose_device(machine: Machine, device: str) -> Device | None:
    """The accelerator meant by `device` (auto, cpu, gpu or gpu:N); None for the CPU.

    Raises:
        UsageError: the name is unknown, or there is no such GPU.
    """
    if device == "cpu" or (device == "auto" and not machine.devices):
        return None
    if device in ("auto", "gpu"):
        index = machine.devices[0].index if machine.devices else 0
    elif device.startswith("gpu:") and device[4:].isdigit():
        index = int(device[4:])
    else:
        raise UsageError(f"device: {device!r} is not one of auto, cpu, gpu, gpu:0, gpu:1, …")
    for found in machine.devices:
        if found.index == index:
            return found
    there = ", ".join(f"gpu:{d.index} ({d.name})" for d in machine.devices) or "none that the NVIDIA driver reports"
    raise UsageError(f"device: {device!r} is not on this machine; GPUs here: {there}")


def check_free(device: Device) -> None:
    """See to it that the calling process does not hold the GPU itself: what it holds, the trials cannot have.

    Raises:
        DeviceBusyError: it does.
    """
    with _driver() as there:
        if not there:
            return
        holding = _processes(_handle(device))
    if os.getpid() in holding:
        raise DeviceBusyError(device.name, holding[os.getpid()])
    files = Path("/proc/self/fd")
    opened = {str(file.readlink()) for file in _readable(files)}
    if not holding and _CUDA_FILE in opened:  # in a container the driver names no process
        raise DeviceBusyError(device.name, None)


def used_bytes(device: Device, pids: Collection[int]) -> tuple[int, int | None]:
    """What the driver counts as used on the device: (by everybody, by these processes), in bytes.

    The second is None where the driver does not tell processes apart (a container).
    """
    with _driver() as there:
        if not there:
            return 0, None
        handle = _handle(device)
        processes = _processes(handle)
        own = [size for pid, size in processes.items() if pid in pids]
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), sum(own) if own else None


def nvidia_devices(*, hidden: bool = False) -> tuple[Device, ...]:
    """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible (with `hidden`, all), in the driver's order."""
    visible = None if hidden else os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [entry.strip() for entry in visible.split(",")]
    devices = []
    with _driver() as there:
        driver = str(pynvml.nvmlSystemGetDriverVersion()) if there else ""
        for index in range(pynvml.nvmlDeviceGetCount() if there else 0):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, memory = str(pynvml.nvmlDeviceGetUUID(handle)), pynvml.nvmlDeviceGetMemoryInfo(handle)
            if wanted is None or str(index) in wanted or any(w and uuid.startswith(w) for w in wanted):
                held_by = tuple(f"{_name(pid)} holds {format_bytes(size)}" for pid, size in _processes(handle).items())
                name = str(pynvml.nvmlDeviceGetName(handle))
                devices.append(Device(index, name, uuid, int(memory.total), int(memory.free), held_by, driver))
    return tuple(devices)


@contextlib.contextmanager
def _driver() -> Iterator[bool]:
    """Talk to the NVIDIA driver; False where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _handle(device: Device) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


def _processes(handle: Any) -> dict[int, int]:
    """Bytes that each process holds, by its number; empty where the driver does not tell."""
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return {}
    return {int(process.pid): int(process.usedGpuMemory or 0) for process in found}


def _name(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"


def _readable(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.is_symlink()]
    except OSError:
        return []
