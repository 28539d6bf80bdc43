"""Readings of NVML, the NVIDIA driver's query library; None if the driver does not report one.

Call these functions inside `opened`, as the driver reports nothing otherwise. The blocks may be nested; only the outermost
one opens and closes the library. Without persistence mode the driver initializes a GPU again after its last client has
gone, which takes seconds. A block around many readings keeps it awake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pynvml

from autofit.machine import host
from autofit.records.machine import Device
from autofit.records.units import format_bytes

Reading = TypeVar("Reading")

_THROTTLES = {  # NVML's reasons for a lower clock that a load causes, by bit
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power supply",
}


@contextlib.contextmanager
def opened() -> Iterator[bool]:
    """Open NVML for the block; yield False if it is not available."""
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


def driver_version() -> str:
    """The version of the driver; empty if it is not reported."""
    return str(_reading(pynvml.nvmlSystemGetDriverVersion) or "")


def handles() -> Iterator[tuple[Any, pynvml.NVMLError | None]]:
    """The handle of each device that CUDA can use, or the driver's error; a GPU in MIG slices yields the slices."""
    for index in range(_reading(pynvml.nvmlDeviceGetCount) or 0):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            yield None, error
            continue
        for device in list(_slices(handle)) or [handle]:
            yield device, None


def _slices(handle: Any) -> Iterator[Any]:
    mode = _reading(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for index in range(_reading(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig_slice = _reading(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if mig_slice is not None:
            yield mig_slice


def compute_capability(handle: Any) -> tuple[int, int] | None:
    """The compute capability of a GPU, or of the GPU that a slice is part of."""
    whole = _reading(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    pair = _reading(pynvml.nvmlDeviceGetCudaComputeCapability, handle if whole is None else whole)
    return None if pair is None else (int(pair[0]), int(pair[1]))


def holders(handle: Any) -> tuple[str, ...]:
    """Describe the processes that hold a GPU's memory."""
    return tuple(f"{host.process_name(pid)} holds {format_bytes(size)}" for pid, size in _processes(handle).items())


def total_used(device: Device) -> int | None:
    """The memory in use, bytes."""
    memory = _of(device, pynvml.nvmlDeviceGetMemoryInfo)
    return None if memory is None else int(memory.used)


def bytes_by_pid(device: Device) -> dict[int, int]:
    """The bytes that each process holds, by pid; empty if none are reported."""
    return _of(device, _processes) or {}


def clock_mhz(device: Device) -> int | None:
    """The clock of the multiprocessors, MHz."""
    clock = _of(device, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)
    return None if clock is None else int(clock)


def throttles(device: Device) -> frozenset[str]:
    """The reasons, caused by a load, why the GPU's clock is lower now than it could be."""
    bits = _of(device, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return frozenset(reason for bit, reason in _THROTTLES.items() if int(bits) & bit)


def nearby_cores(device: Device, core_count: int) -> tuple[int, ...]:
    """The numbers of the CPU cores on the GPU's own NUMA node; empty if they are not reported."""
    words = _of(device, pynvml.nvmlDeviceGetCpuAffinity, -(-core_count // 64)) or ()
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)


def _reading(query: Callable[..., Reading], *arguments: Any) -> Reading | None:
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _of(device: Device, query: Callable[..., Reading], *arguments: Any) -> Reading | None:
    handle = _reading(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
    return None if handle is None else _reading(query, handle, *arguments)


def _processes(handle: Any) -> dict[int, int]:
    """The bytes that each process holds, for computing or drawing, by pid."""
    held: dict[int, int] = {}
    for query in (pynvml.nvmlDeviceGetGraphicsRunningProcesses, pynvml.nvmlDeviceGetComputeRunningProcesses):
        for process in _reading(query, handle) or ():
            held[int(process.pid)] = max(int(process.usedGpuMemory or 0), held.get(int(process.pid), 0))
    return held
