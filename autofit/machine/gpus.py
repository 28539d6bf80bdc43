"""The accelerators of this host, as the NVIDIA driver reports them, and who holds their memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from autofit.errors import DeviceBusyError, UsageError
from autofit.records.machine import Device, Machine
from autofit.records.units import format_bytes

_CUDA_FILE = "/dev/nvidia-uvm"  # opened when a process starts CUDA, not by asking the driver
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class UnreadDevice:
    """A GPU that the driver does not tell enough about to tune on it; `problem` is its text, `code` its number."""

    index: int
    name: str
    uuid: str
    problem: str
    code: int


def choose_device(machine: Machine, device: str) -> Device | None:
    """The accelerator meant by `device` (auto, cpu, gpu or gpu:N); None for the CPU.

    Raises:
        UsageError: the name is unknown, there is no such GPU, or only a slice of one is visible.
    """
    if device == "cpu":
        return None
    if not machine.devices and (part := mig_slice(os.environ)) is not None:
        raise UsageError(
            f"{device!r}: {_VISIBLE} names {part}: MIG slices are not supported yet; say device: cpu, or name the "
            "whole GPU in it",
            key="device",
        )
    if device == "auto" and not machine.devices:
        return None
    if device in ("auto", "gpu"):
        index = machine.devices[0].index if machine.devices else 0
    elif device.startswith("gpu:") and device[4:].isdigit():
        index = int(device[4:])
    else:
        raise UsageError(f"{device!r} is not one of auto, cpu, gpu, gpu:0, gpu:1, …", key="device")
    for found in machine.devices:
        if found.index == index:
            return found
    told = [f"gpu:{d.index} ({d.name})" for d in machine.devices]
    told += [f"gpu:{d.index} ({d.name}, not usable: {d.problem})" for d in survey() if isinstance(d, UnreadDevice)]
    there = ", ".join(told) or "none that the NVIDIA driver reports"
    raise UsageError(f"{device!r} is not on this machine; GPUs here: {there}", key="device")


def check_free(device: Device) -> None:
    """See to it that the calling process does not hold the GPU itself: what it holds, the trials cannot have.

    Raises:
        DeviceBusyError: it does.
    """
    with _driver() as there:
        if not there:
            return
        holding = _holding(device)
    if os.getpid() in holding:
        raise DeviceBusyError(device.name, holding[os.getpid()])
    files = Path("/proc/self/fd")
    opened = {str(file.readlink()) for file in _readable(files)}
    if not holding and _CUDA_FILE in opened:  # in a container the driver names no process
        raise DeviceBusyError(device.name, None)


def used_bytes(device: Device, pids: Collection[int]) -> tuple[int | None, int | None]:
    """What the driver counts as used on the device: (by everybody, by these processes), in bytes.

    None is what it does not tell; in a container it does not tell processes apart.
    """
    with _driver() as there:
        if not there:
            return None, None
        own = [size for pid, size in _holding(device).items() if pid in pids]
        try:
            everybody = int(pynvml.nvmlDeviceGetMemoryInfo(_handle(device)).used)
        except pynvml.NVMLError:
            everybody = None
        return everybody, sum(own) if own else None


def nvidia_devices() -> tuple[Device, ...]:
    """The NVIDIA GPUs to tune on: those of `survey` that the driver tells about."""
    return tuple(device for device in survey() if isinstance(device, Device))


def survey(*, hidden: bool = False) -> tuple[Device | UnreadDevice, ...]:
    """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order (with `hidden`, all, in the driver's)."""
    named = None if hidden else os.environ.get(_VISIBLE)
    with _driver() as there:
        found = _all() if there else ()
    return found if named is None else _visible(found, named)


def mig_slice(environment: Mapping[str, str]) -> str | None:
    """The first slice of a GPU (MIG) that CUDA_VISIBLE_DEVICES names; None where it names none."""
    entries = (part.strip() for part in environment.get(_VISIBLE, "").split(","))
    return next((entry for entry in entries if entry.startswith("MIG-")), None)


def _visible(found: tuple[Device | UnreadDevice, ...], named: str) -> tuple[Device | UnreadDevice, ...]:
    """Those that the variable names, in its order, up to the first entry that names none.

    A number counts in the order of the PCI bus, as for CUDA where CUDA_DEVICE_ORDER is PCI_BUS_ID or all GPUs are alike.
    """
    chosen: list[Device | UnreadDevice] = []
    for entry in (part.strip() for part in named.split(",")):
        meant = [d for d in found if str(d.index) == entry or (entry.startswith("GPU-") and d.uuid.startswith(entry))]
        if not meant:
            break
        chosen.append(meant[0])
    return tuple(dict.fromkeys(chosen))


def _all() -> tuple[Device | UnreadDevice, ...]:
    try:
        driver, count = str(pynvml.nvmlSystemGetDriverVersion()), pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return ()
    return tuple(_read(index, driver) for index in range(count))


def _read(index: int, driver: str) -> Device | UnreadDevice:
    name, uuid = "an NVIDIA GPU", ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return UnreadDevice(index, name, uuid, str(error), int(error.value))
    held_by = tuple(f"{_name(pid)} holds {format_bytes(size)}" for pid, size in _processes(handle).items())
    return Device(index, name, uuid, int(memory.total), int(memory.free), held_by, driver)


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
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _handle(device: Device) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


def _holding(device: Device) -> dict[int, int]:
    try:
        return _processes(_handle(device))
    except pynvml.NVMLError:
        return {}


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
