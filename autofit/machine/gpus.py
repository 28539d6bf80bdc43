"""The GPUs of this host, as the NVIDIA driver reports them: choice, memory, clock, and processes
that hold memory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from autofit.backends import BACKENDS
from autofit.errors import DeviceBusyError, UsageError
from autofit.machine.host import process_name
from autofit.records import cuda_memory, version_of
from autofit.records.machine import Device, Machine, Placement
from autofit.records.units import format_bytes

_ROOT = Path("/")
# files that a system has for a GPU of NVIDIA: of any number, on Jetson, and in WSL 2
_NVIDIA_FILES = ("dev/nvidia[0-9]*", "dev/nvhost-gpu", "usr/lib/wsl/lib/libcuda.so*")
# accelerators that autofit does not know: their files, and the packages with which Keras trains on
# them
_OTHERS = {
    "an AMD GPU": (
        ("dev/kfd",),
        ("tensorflow-rocm", "jax-rocm60-plugin", "jax-rocm7-plugin", "torch+rocm"),
    ),
    "a TPU": (("dev/accel*", "dev/vfio/[0-9]*"), ("libtpu", "torch-xla")),
    "an Intel GPU": (
        ("dev/dri/renderD*",),
        ("intel-extension-for-tensorflow", "torch+xpu"),
    ),
    "Apple's GPU": (("System/Library",), ("tensorflow-metal", "jax-metal")),
}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"
# reasons why a clock is lowered under load, by NVML's bit
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power supply",
}

# the forms of `device`: gpu:0,1 are the GPUs with these indices, 2x gpu any two, and 2x cpu two
# parts of the CPU
DEVICE = r"^(auto|cpu|gpu|gpu:\d+(,\d+)*|[1-9]\d*x (cpu|gpu))$"

Reading = TypeVar("Reading")


def parse_device(device: str) -> tuple[str, int, tuple[int, ...]]:
    """Split a `device` of the form `DEVICE` into auto, cpu or gpu, the number of devices, and the
    indices of GPUs.
    """
    many, _, kind = device.rpartition("x ")
    kind, _, listed = kind.partition(":")
    indices = tuple(int(index) for index in listed.split(",") if index)
    return kind, int(many or len(indices) or 1), indices


def choose_placement(machine: Machine, device: str) -> Placement:
    """Return the devices that `device` selects.

    Several GPUs must be of one model, because the slowest sets the pace.
    """
    kind, count, indices = parse_device(device)
    if kind == "cpu":
        return Placement(count=count)
    _require_order()
    chosen = [gpu for gpu in machine.devices if gpu.index in indices]
    if not indices and machine.devices:
        # the GPU that CUDA numbers 0: the first that CUDA_VISIBLE_DEVICES names, or else the
        # fastest
        first = machine.devices[0]
        if _VISIBLE not in os.environ:
            first = max(
                machine.devices,
                key=lambda gpu: (gpu.compute_capability or (0, 0), gpu.total_bytes),
            )
        alike = [
            gpu for gpu in machine.devices if gpu.name == first.name and gpu != first
        ]
        chosen = [first, *alike][:count]
    if len(chosen) == count and len({gpu.name for gpu in chosen}) == 1:
        return Placement.on(*chosen)
    # also with auto: nobody should tune on the CPU by accident
    if not machine.devices and (problem := _unusable()):
        raise UsageError(f"{problem}; to tune on the CPU, write cpu", key="device")
    if device == "auto":
        return Placement()
    listed = (
        ", ".join(f"gpu:{gpu.index} ({gpu.name})" for gpu in machine.devices)
        or "none that the NVIDIA driver reports"
    )
    rule = f"{count} devices must be different GPUs of one model; " if count > 1 else ""
    raise UsageError(
        f"{device!r} is not on this machine; {rule}available GPUs: {listed}",
        key="device",
    )


def _require_order() -> None:
    """Raise UsageError if CUDA and the driver may count CUDA_VISIBLE_DEVICES differently."""
    visible = os.environ.get(_VISIBLE, "")
    is_counted = any(entry.strip().isdigit() for entry in visible.split(","))
    if not is_counted or os.environ.get(_ORDER) == _BY_BUS:
        return
    names = sorted({gpu.name for gpu in _all_devices() if gpu is not None})
    if len(names) > 1:
        raise UsageError(
            f"{_VISIBLE}={visible} does not say which GPU: of {', '.join(names)}, CUDA counts the "
            "fastest first, the driver by their slots. Name GPUs by UUID (nvidia-smi -L), or "
            f"export {_ORDER}={_BY_BUS}",
            key="device",
        )


def _unusable() -> str:
    """Return why the GPU on which programs may train here cannot be used; empty without one."""
    # values that begin in another way hide all GPUs
    if re.match(r"\s*(\d|GPU-|MIG-)", os.environ.get(_VISIBLE, "0")):
        if names := _without_memory():
            return (
                f"the driver does not report the memory of {', '.join(names)}, as of GPUs that "
                "share the host's: autofit could not limit trials there"
            )
        if file := _first_file(_NVIDIA_FILES):
            return (
                f"there is a GPU ({file}), but the driver reports the memory of none that "
                f"{_VISIBLE} allows (nvidia-smi -L lists them; a container needs the driver "
                "capability 'utility')"
            )
    for accelerator, (files, packages) in _OTHERS.items():
        package = next(filter(_is_installed, packages), None)
        if package is not None and (file := _first_file(files)):
            return (
                f"this machine has {accelerator} ({file}), on which {package} trains; "
                "autofit knows GPUs of NVIDIA only"
            )
    return ""


def _first_file(patterns: Iterable[str]) -> Path | None:
    for pattern in patterns:
        for file in sorted(_ROOT.glob(pattern)):
            return file
    return None


def _is_installed(package: str) -> bool:
    name, _, build = package.partition("+")
    found = version_of(name)
    return bool(found) and build in str(found)


def require_free(device: Device) -> None:
    """Raise DeviceBusyError if the calling process holds memory of the GPU: trials could not use
    that memory.
    """
    own = bytes_by_pid(device).get(os.getpid()) or 0
    if own > cuda_memory.MOST_CONTEXT_BYTES or _holds_memory():
        much = f"{format_bytes(own)} of " if own else ""
        raise DeviceBusyError(
            f"this process holds {much}the memory of {device.name}, so trials cannot use that "
            "memory. Call autofit before this process uses the GPU (building a model uses it), or "
            "call autofit from a separate process. In a notebook, restart the kernel and call "
            "autofit first"
        )


def _holds_memory() -> bool:
    # Whether an imported backend reports memory on a GPU; this imports and initializes nothing.
    # A backend that has only listed its GPUs holds a context, beside which trials can run.
    #
    # The driver's report is not enough. In a container it may name no process, name processes of
    # the host, or name this one with 0 bytes, and it counts a process that has only listed its GPUs
    # as one that uses CUDA.
    for backend in BACKENDS.values():
        with contextlib.suppress(
            Exception
        ):  # private names, which another version may lack
            if backend.holds_gpu_memory():
                return True
    return False


def used_bytes(device: Device, pids: Collection[int]) -> tuple[int | None, int | None]:
    """Return the device memory in use by all processes, and by the given ones, in bytes.

    Each is None if the driver does not report it. In a container the driver may omit some
    processes, or report 0 bytes.
    """
    memory = _of(device, pynvml.nvmlDeviceGetMemoryInfo)
    used = None if memory is None else int(memory.used)
    own = sum(size for pid, size in bytes_by_pid(device).items() if pid in pids)
    return used, own or None


def holders(device: Device) -> str:
    """Describe the processes that now hold memory of the GPU; empty if the driver names none."""
    now = {gpu.uuid: gpu for gpu in nvidia_devices()}.get(device.uuid)
    return "" if now is None else ", ".join(now.held_by)


def nvidia_devices() -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, in its order, without those whose memory
    NVML cannot read.
    """
    devices = _all_devices()
    chosen = devices
    if _VISIBLE in os.environ:
        chosen = []
        for entry in map(str.strip, os.environ[_VISIBLE].split(",")):
            is_name = entry.startswith(("GPU-", "MIG-"))
            # numbers follow the PCI bus; CUDA's do so only if CUDA_DEVICE_ORDER is PCI_BUS_ID or
            # all GPUs are of one model
            for gpu in filter(None, devices):
                if str(gpu.index) == entry or (is_name and gpu.uuid.startswith(entry)):
                    chosen.append(gpu)
                    break
            else:
                # CUDA ignores what follows
                break
    return tuple(dict.fromkeys(device for device in chosen if device is not None))


def _all_devices() -> list[Device | None]:
    """Return the GPUs in the driver's order, None for one that it refuses."""
    with keep_nvml_open():
        driver = str(_reading(pynvml.nvmlSystemGetDriverVersion) or "")
        return [_read(index, handle, driver) for index, handle in enumerate(_handles())]


def _without_memory() -> list[str]:
    """Return the names of the GPUs whose memory the driver does not report."""
    with keep_nvml_open():
        return [
            str(_reading(pynvml.nvmlDeviceGetName, handle))
            for handle in _handles()
            if handle is not None
            and _reading(pynvml.nvmlDeviceGetMemoryInfo, handle) is None
        ]


def _read(index: int, handle: Any, driver: str) -> Device | None:
    memory = (
        None if handle is None else _reading(pynvml.nvmlDeviceGetMemoryInfo, handle)
    )
    if memory is None:
        return None
    held = _processes(handle).items()
    held_by = tuple(
        f"{process_name(pid)} holds {format_bytes(size)}" for pid, size in held
    )
    # the GPU that a slice belongs to
    whole = _reading(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    pair = _reading(
        pynvml.nvmlDeviceGetCudaComputeCapability, handle if whole is None else whole
    )
    capability = None
    if pair is not None:
        major, minor = pair
        capability = (int(major), int(minor))
    return Device(
        index,
        str(_reading(pynvml.nvmlDeviceGetName, handle)),
        str(_reading(pynvml.nvmlDeviceGetUUID, handle)),
        int(memory.total),
        int(memory.free),
        held_by,
        driver,
        capability,
    )


@contextlib.contextmanager
def keep_nvml_open() -> Iterator[None]:
    """Keep NVML open in the block if it is available, so that the readings in it do not each open
    it.
    """
    # Without persistence mode, the driver shuts a GPU down when its last client closes, and
    # initializing it again takes seconds. One block around many readings avoids this.
    _reading(pynvml.nvmlInit)
    try:
        yield
    finally:
        _reading(pynvml.nvmlShutdown)


def _handles() -> Iterator[Any]:
    # the handle of each device that CUDA can use, or None if the driver refuses it; for a GPU in
    # MIG slices, the slices
    for index in range(_reading(pynvml.nvmlDeviceGetCount) or 0):
        handle = _reading(pynvml.nvmlDeviceGetHandleByIndex, index)
        # 0 if the GPU is not in MIG mode
        most = _reading(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        slices = [
            _reading(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            for number in range(most)
        ]
        yield from [each for each in slices if each is not None] or [handle]


def bytes_by_pid(device: Device) -> dict[int, int]:
    """Return the bytes of the GPU that each process holds, by pid; empty if none are reported."""
    return _of(device, _processes) or {}


def throttles(device: Device) -> frozenset[str]:
    """Return the reasons why the GPU's clock is currently lowered under load."""
    bits = _of(device, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return frozenset(reason for bit, reason in _THROTTLES.items() if int(bits) & bit)


def _reading(query: Callable[..., Reading], *arguments: Any) -> Reading | None:
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _of(device: Device, query: Callable[[Any], Reading]) -> Reading | None:
    with keep_nvml_open():
        handle = _reading(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
        return None if handle is None else _reading(query, handle)


def _processes(handle: Any) -> dict[int, int]:
    # for computing or drawing
    held: dict[int, int] = {}
    for query in (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetComputeRunningProcesses,
    ):
        for process in _reading(query, handle) or ():
            pid = int(process.pid)
            held[pid] = max(int(process.usedGpuMemory or 0), held.get(pid, 0))
    return held
