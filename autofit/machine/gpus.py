"""GPUs of this host, as the NVIDIA driver reports them, and the processes that hold their memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from autofit.errors import DeviceBusyError, UsageError
from autofit.machine import frameworks, nvml
from autofit.records.machine import Device, Machine, Placement

_CUDA_FILE = "/dev/nvidia-uvm"  # opened when a process initializes CUDA, not by NVML queries
_DEVICE_FILE = Path("/dev/nvidia0")
_IDLE_BYTES = 1.5 * 2**30  # in use on a GPU on which nothing trains, at most: driver, display, idle contexts (assumed)
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class UnreadDevice:
    """A GPU that NVML cannot describe well enough to tune on; `problem` is NVML's message, `code` its error number."""

    index: int
    name: str
    uuid: str
    problem: str
    code: int


def choose_placement(machine: Machine, device: str, devices: int | Sequence[int] | None) -> Placement:
    """Return the devices of a training.

    Args:
        machine: with its GPUs.
        device: auto, cpu, gpu or gpu:N.
        devices: how many, or the numbers of the GPUs; None for one.

    Raises:
        UsageError: as `choose_device`; there are fewer GPUs than asked for, or both arguments name some.
    """
    if devices is None or devices == 1:
        chosen = choose_device(machine, device)
        return Placement() if chosen is None else Placement.on(chosen)
    if device not in ("auto", "cpu", "gpu"):
        raise UsageError(f"{devices!r} is given beside device: {device}; write one of both", key="devices")
    if not isinstance(devices, int):
        if device == "cpu":
            raise UsageError(f"{devices!r} names GPUs, and device is cpu; write a number of devices", key="devices")
        if len(set(devices)) < len(devices):
            raise UsageError(f"{devices!r} has a duplicate", key="devices")
        named = [choose_device(machine, f"gpu:{index}") for index in devices]
        return Placement.on(*(gpu for gpu in named if gpu is not None))
    if device == "cpu":
        return Placement(count=devices)
    if len(machine.devices) < devices:
        names = ", ".join(f"gpu:{gpu.index} ({gpu.name})" for gpu in machine.devices) or "none"
        raise UsageError(
            f"{devices} GPUs are asked for; on this machine are: {names}. To try the code without them, write device: cpu, "
            f"which trains on {devices} logical devices of one CPU",
            key="devices",
        )
    foremost = _foremost(machine.devices)
    alike = sorted(machine.devices, key=lambda gpu: gpu.name != foremost.name)  # stable: in order, those of its model first
    return Placement.on(*alike[:devices])


def choose_device(machine: Machine, device: str) -> Device | None:
    """Return the accelerator that `device` (auto, cpu, gpu or gpu:N) selects; None for the CPU.

    Raises:
        UsageError: the name is unknown, there is no such GPU, or one that the driver does not describe.
    """
    if device == "cpu":
        return None
    if not machine.devices and (part := mig_slice(os.environ)) is not None:
        raise UsageError(
            f"{device!r}: {_VISIBLE} names {part}, a MIG slice that the driver does not report; name one that "
            "nvidia-smi -L lists, or write cpu",
            key="device",
        )
    if device == "auto" and not machine.devices:
        _require_no_gpu()
        return None
    if device in ("auto", "gpu"):
        index = _foremost(machine.devices).index if machine.devices else 0
    elif device.startswith("gpu:") and device[4:].isdigit():
        index = int(device[4:])
    else:
        raise UsageError(f"{device!r} is not one of auto, cpu, gpu, gpu:0, gpu:1, …", key="device")
    for candidate in machine.devices:
        if candidate.index == index:
            return candidate
    choices = [f"gpu:{d.index} ({d.name})" for d in machine.devices]
    choices += [f"gpu:{d.index} ({d.name}, not usable: {d.problem})" for d in survey() if isinstance(d, UnreadDevice)]
    listed = ", ".join(choices) or "none that the NVIDIA driver reports"
    raise UsageError(f"{device!r} is not on this machine; available GPUs: {listed}", key="device")


def _foremost(devices: Sequence[Device]) -> Device:
    """The GPU that CUDA numbers 0: the first of those that the user names, or else the fastest, where they differ."""
    if _VISIBLE in os.environ:
        return devices[0]
    return max(devices, key=lambda device: (device.compute_capability or (0, 0), device.total_bytes))


def _require_no_gpu() -> None:
    """Check that no GPU is here that the driver does not describe: a tune of the CPU would answer another question.

    Raises:
        UsageError: one is, and CUDA_VISIBLE_DEVICES does not hide it.
    """
    unread = next((found for found in survey() if isinstance(found, UnreadDevice)), None)
    if unread is not None:
        problem = f"the driver does not say how much memory {unread.name} has ({unread.problem})"
    elif _VISIBLE not in os.environ and _DEVICE_FILE.exists():
        problem = (
            f"{_DEVICE_FILE} is here, but the driver's library does not answer (a container needs its capability utility)"
        )
    else:
        return
    raise UsageError(f"a GPU cannot be tuned on: {problem}; write cpu to tune on the CPU", key="device")


def require_free(device: Device) -> None:
    """Check that the calling process holds no memory of the GPU, which its trials could not use.

    Raises:
        DeviceBusyError: it holds some.
    """
    with nvml.opened() as available:
        if not available:
            return
        held, used = nvml.bytes_by_pid(device), nvml.total_used(device)
    own = held.get(os.getpid())
    if own or frameworks.on_gpu() is not None:
        raise DeviceBusyError(device.name, own or None)
    opened = {str(file.readlink()) for file in _links(Path("/proc/self/fd"))}
    is_unnamed = not any(held.values()) and (used or 0) > _IDLE_BYTES
    if is_unnamed and _CUDA_FILE in opened:  # the driver does not say who holds it, and this process may
        raise DeviceBusyError(device.name, None)


def used_bytes(device: Device, pids: Collection[int]) -> tuple[int | None, int | None]:
    """Return the device memory in use (by all processes, by the given ones), in bytes.

    A figure that the driver does not report is None; in a container it may not report single processes, or with 0 bytes.
    """
    with nvml.opened() as available:
        if not available:
            return None, None
        own = [size for pid, size in nvml.bytes_by_pid(device).items() if pid in pids]
        return nvml.total_used(device), sum(own) or None


def holders(device: Device) -> str:
    """Return who holds the GPU's memory now, for people; empty where the driver names nobody."""
    return ", ".join(next((now.held_by for now in nvidia_devices() if now.uuid == device.uuid), ()))


def nearby_cores(device: Device) -> tuple[int, ...]:
    """Return the numbers of the CPU cores on the GPU's own NUMA node; empty where the driver does not report them."""
    with nvml.opened() as available:
        return nvml.nearby_cores(device, os.cpu_count() or 1) if available else ()


def nvidia_devices() -> tuple[Device, ...]:
    """Return the GPUs of `survey` that can be tuned on."""
    return tuple(device for device in survey() if isinstance(device, Device))


def survey(*, hidden: bool = False) -> tuple[Device | UnreadDevice, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order (with `hidden`, all, in the driver's)."""
    named = None if hidden else os.environ.get(_VISIBLE)
    with nvml.opened() as available:
        devices = _all() if available else ()
    return devices if named is None else _visible(devices, named)


def mig_slice(environment: Mapping[str, str]) -> str | None:
    """Return the first MIG slice that CUDA_VISIBLE_DEVICES names; None where it names none."""
    entries = (part.strip() for part in environment.get(_VISIBLE, "").split(","))
    return next((entry for entry in entries if entry.startswith("MIG-")), None)


def _visible(devices: tuple[Device | UnreadDevice, ...], named: str) -> tuple[Device | UnreadDevice, ...]:
    """Return the devices that the variable names, in its order, up to the first entry that names none.

    Numbers follow the PCI bus, as CUDA's do where CUDA_DEVICE_ORDER is PCI_BUS_ID or all GPUs are of one model.
    """
    chosen: list[Device | UnreadDevice] = []
    for entry in (part.strip() for part in named.split(",")):
        is_name = entry.startswith(("GPU-", "MIG-"))
        matches = [d for d in devices if str(d.index) == entry or (is_name and d.uuid.startswith(entry))]
        if not matches:
            break
        chosen.append(matches[0])
    return tuple(dict.fromkeys(chosen))


def _all() -> tuple[Device | UnreadDevice, ...]:
    driver = nvml.driver_version()
    return tuple(_read(index, handle, error, driver) for index, (handle, error) in enumerate(nvml.handles()))


def _read(index: int, handle: Any, error: pynvml.NVMLError | None, driver: str) -> Device | UnreadDevice:
    name, uuid = "an NVIDIA GPU", ""
    try:
        if error is not None:
            raise error
        name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as problem:
        return UnreadDevice(index, name, uuid, str(problem), int(problem.value))
    capability = nvml.compute_capability(handle)
    return Device(index, name, uuid, int(memory.total), int(memory.free), nvml.holders(handle), driver, capability)


def _links(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.is_symlink()]
    except OSError:
        return []
