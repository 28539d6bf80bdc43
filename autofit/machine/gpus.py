"""The GPUs of this host, as the NVIDIA driver reports them: choice, memory, clock, and processes that hold memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from autofit.errors import DeviceBusyError, UsageError
from autofit.machine.host import process_name
from autofit.records.machine import Device, Machine, Placement
from autofit.records.units import format_bytes

_CUDA_FILE = "/dev/nvidia-uvm"  # opened when a process initializes CUDA, not by NVML queries
_DEVICE_FILE = Path("/dev/nvidia0")
_IDLE_BYTES = 1.5 * 2**30  # the most memory in use without training: driver, display, idle contexts (assumed)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THROTTLES = {  # reasons why a clock is lowered under load, by NVML's bit
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power supply",
}

DEVICE = r"^(auto|cpu|gpu|gpu:\d+(,\d+)*|[1-9]\d*x (cpu|gpu))$"
"""The forms of `device`: gpu:0,1 are the GPUs with these indices, 2x gpu any two, and 2x cpu two parts of the CPU."""

Reading = TypeVar("Reading")


@dataclass(frozen=True)
class UnreadDevice:
    """A GPU that autofit cannot use because NVML does not report its memory; `problem` is NVML's message."""

    index: int
    name: str
    uuid: str
    problem: str


def requested(device: str) -> tuple[str, int, tuple[int, ...]]:
    """Split a `device` of the form `DEVICE` into auto, cpu or gpu, the number of devices, and the indices of GPUs."""
    many, _, kind = device.rpartition("x ")
    kind, _, listed = kind.partition(":")
    indices = tuple(int(index) for index in listed.split(",") if index)
    return kind, int(many or len(indices) or 1), indices


def choose_placement(machine: Machine, device: str) -> Placement:
    """Return the devices that `device` selects; several GPUs must be of one model, because the slowest sets the pace."""
    kind, count, indices = requested(device)
    if kind == "cpu":
        return Placement(count=count)
    chosen = [gpu for gpu in machine.devices if gpu.index in indices]
    if not indices and machine.devices:
        first = _foremost(machine.devices)
        chosen = [first, *(gpu for gpu in machine.devices if gpu.name == first.name and gpu != first)][:count]
    if len(chosen) == count and len({gpu.name for gpu in chosen}) == 1:
        return Placement.on(*chosen)
    # also with auto: nobody should tune on the CPU by accident
    if not machine.devices and (reason := unusable_gpu()) is not None:
        raise UsageError(f"{reason}; to tune on the CPU, write cpu", key="device")
    if device == "auto":
        return Placement()
    choices = [f"gpu:{d.index} ({d.name})" for d in machine.devices]
    choices += [f"gpu:{d.index} ({d.name}, not usable: {d.problem})" for d in survey() if isinstance(d, UnreadDevice)]
    listed = ", ".join(choices) or "none that the NVIDIA driver reports"
    rule = f"{count} devices must be different GPUs of one model; " if count > 1 else ""
    raise UsageError(f"{device!r} is not on this machine; {rule}available GPUs: {listed}", key="device")


def _foremost(devices: Sequence[Device]) -> Device:
    """Return the GPU that CUDA numbers 0: the first in CUDA_VISIBLE_DEVICES if that is set, otherwise the fastest."""
    if _VISIBLE in os.environ:
        return devices[0]
    return max(devices, key=lambda device: (device.compute_capability or (0, 0), device.total_bytes))


def unusable_gpu() -> str | None:
    """Return why a GPU that is present and not hidden cannot be used; None if there is no such GPU."""
    entries = (entry.strip() for entry in os.environ.get(_VISIBLE, "").split(","))
    mig_slice = next((entry for entry in entries if entry.startswith("MIG-")), None)
    devices = survey()
    unread = next((device for device in devices if isinstance(device, UnreadDevice)), None)
    if mig_slice is not None and not devices:
        return (
            f"{_VISIBLE} names {mig_slice}, a MIG slice that the driver does not report; name one that nvidia-smi -L lists"
        )
    if unread is not None:
        return f"the driver does not report the memory of {unread.name} ({unread.problem})"
    if _VISIBLE not in os.environ and not devices and _DEVICE_FILE.exists():
        return f"{_DEVICE_FILE} exists, but the driver does not answer (a container needs the driver capability 'utility')"
    return None


def require_free(device: Device) -> None:
    """Raise DeviceBusyError if the calling process holds memory of the GPU: trials could not use that memory."""
    with opened():
        held, used = bytes_by_pid(device), total_used(device)
        others = (other for other in nvidia_devices() if other.uuid != device.uuid)
        is_elsewhere = any(bytes_by_pid(other).get(os.getpid()) for other in others)
    own = held.get(os.getpid())
    if is_elsewhere and not own:
        return  # the driver names this process where it holds memory, which is not here
    is_unnamed = not any(held.values()) and (used or 0) > _IDLE_BYTES  # the holder may be this process
    if own or _is_framework_on_gpu() or (is_unnamed and _has_opened_cuda()):
        raise DeviceBusyError(device.name, own or None)


def _is_framework_on_gpu() -> bool:
    """Return whether an imported framework reports memory on a GPU; imports and initializes nothing."""
    # The driver's report is not enough. In a container it may name no process, name processes of the host, or name this one
    # with 0 bytes, and it counts a process that has only listed its GPUs as one that uses CUDA.
    for module, is_on_gpu in _FRAMEWORKS.items():
        with contextlib.suppress(Exception):  # private names, which another version may lack
            if module in sys.modules and is_on_gpu(sys.modules[module]):
                return True
    return False


def _tensorflow_on_gpu(context: Any) -> bool:
    current = context.context_safe()  # it has no handle before the first operation
    return getattr(current, "_context_handle", None) is not None and bool(current.list_logical_devices("GPU"))


_FRAMEWORKS: dict[str, Callable[[Any], bool]] = {
    "tensorflow.python.eager.context": _tensorflow_on_gpu,
    "torch": lambda torch: bool(torch.cuda.is_initialized()),
    "jax._src.xla_bridge": lambda bridge: not {"cuda", "gpu", "rocm"}.isdisjoint(bridge._backends),
}


def _has_opened_cuda() -> bool:
    try:
        return any(str(file.readlink()) == _CUDA_FILE for file in Path("/proc/self/fd").iterdir() if file.is_symlink())
    except OSError:
        return False


def used_bytes(device: Device, pids: Collection[int]) -> tuple[int | None, int | None]:
    """Return the device memory in use by all processes, and by the given ones, in bytes.

    Each is None if the driver does not report it. In a container the driver may omit some processes, or report 0 bytes.
    """
    with opened():
        own = [size for pid, size in bytes_by_pid(device).items() if pid in pids]
        return total_used(device), sum(own) or None


def holders(device: Device) -> str:
    """Describe the processes that now hold memory of the GPU; empty if the driver names none."""
    return ", ".join(next((now.held_by for now in nvidia_devices() if now.uuid == device.uuid), ()))


def nvidia_devices() -> tuple[Device, ...]:
    """Return the GPUs of `survey` that tunes can use."""
    return tuple(device for device in survey() if isinstance(device, Device))


def survey(*, hidden: bool = False) -> tuple[Device | UnreadDevice, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, in its order; if `hidden`, return all in the driver's order."""
    selection = None if hidden else os.environ.get(_VISIBLE)
    with opened():
        driver = str(_reading(pynvml.nvmlSystemGetDriverVersion) or "")
        devices = tuple(_read(index, handle, driver) for index, handle in enumerate(_handles()))
    return devices if selection is None else _selected(devices, selection)


def _selected(devices: tuple[Device | UnreadDevice, ...], selection: str) -> tuple[Device | UnreadDevice, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES selects, in its order, up to the first entry that matches no device."""
    chosen: list[Device | UnreadDevice] = []
    for entry in (part.strip() for part in selection.split(",")):
        is_name = entry.startswith(("GPU-", "MIG-"))
        # numbers follow the PCI bus; CUDA's do so only if CUDA_DEVICE_ORDER is PCI_BUS_ID or all GPUs are of one model
        matches = [d for d in devices if str(d.index) == entry or (is_name and d.uuid.startswith(entry))]
        if not matches:
            break
        chosen.append(matches[0])
    return tuple(dict.fromkeys(chosen))


def _read(index: int, handle: Any, driver: str) -> Device | UnreadDevice:
    name, uuid = "an NVIDIA GPU", ""
    try:
        if isinstance(handle, pynvml.NVMLError):
            raise handle
        name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as problem:
        return UnreadDevice(index, name, uuid, str(problem))
    held_by = tuple(f"{process_name(pid)} holds {format_bytes(size)}" for pid, size in _processes(handle).items())
    whole = _reading(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)  # the GPU that a slice belongs to
    pair = _reading(pynvml.nvmlDeviceGetCudaComputeCapability, handle if whole is None else whole)
    capability = None if pair is None else (int(pair[0]), int(pair[1]))
    return Device(index, name, uuid, int(memory.total), int(memory.free), held_by, driver, capability)


@contextlib.contextmanager
def opened() -> Iterator[bool]:
    """Open NVML for the block and yield whether it is available. Blocks may be nested; outside, readings are empty."""
    # Without persistence mode, the driver shuts a GPU down when its last client closes, and initializing it again takes
    # seconds. One block around many readings avoids this.
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


def _handles() -> Iterator[Any]:
    """Yield the handle of each device that CUDA can use, or the driver's error; for a GPU in MIG slices, the slices."""
    for index in range(_reading(pynvml.nvmlDeviceGetCount) or 0):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            yield error
            continue
        mode = _reading(pynvml.nvmlDeviceGetMigMode, handle)
        is_divided = mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        most = _reading(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if is_divided else 0
        slices = [_reading(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in range(most or 0)]
        yield from [each for each in slices if each is not None] or [handle]


def total_used(device: Device) -> int | None:
    """Return the memory in use on a GPU, in bytes; None if it is not reported."""
    memory = _of(device, pynvml.nvmlDeviceGetMemoryInfo)
    return None if memory is None else int(memory.used)


def bytes_by_pid(device: Device) -> dict[int, int]:
    """Return the bytes of the GPU that each process holds, by pid; empty if none are reported."""
    return _of(device, _processes) or {}


def clock_mhz(device: Device) -> int | None:
    """Return the clock of the GPU's multiprocessors, in MHz; None if it is not reported."""
    clock = _of(device, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)
    return None if clock is None else int(clock)


def throttles(device: Device) -> frozenset[str]:
    """Return the reasons why the GPU's clock is currently lowered under load."""
    bits = _of(device, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return frozenset(reason for bit, reason in _THROTTLES.items() if int(bits) & bit)


def _reading(query: Callable[..., Reading], *arguments: Any) -> Reading | None:
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _of(device: Device, query: Callable[..., Reading], *arguments: Any) -> Reading | None:
    handle = _reading(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
    return None if handle is None else _reading(query, handle, *arguments)


def _processes(handle: Any) -> dict[int, int]:
    """Return the bytes that each process holds for computing or drawing, by pid."""
    held: dict[int, int] = {}
    for query in (pynvml.nvmlDeviceGetGraphicsRunningProcesses, pynvml.nvmlDeviceGetComputeRunningProcesses):
        for process in _reading(query, handle) or ():
            held[int(process.pid)] = max(int(process.usedGpuMemory or 0), held.get(int(process.pid), 0))
    return held
