"""What this host has: devices, memory, cores and cgroup limits, read without loading a Keras backend."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil
import pynvml
from pydantic import ByteSize, TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records import Device, Limits, Machine
from autofit.units import format_bytes

MemoryAmount = str | int
"""A percentage of what is there ("80%"), a size with its unit ("6GiB") or a number of bytes."""

_AMOUNTS = "write a percentage (80%), a size (6GiB) or bytes"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 2**60  # cgroup v1 says "no limit" with a number just below 2**63


def detect() -> Machine:
    """Read what this host has and what of it this process may use."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for group in _memory_cgroups():
        limit = _read_int(group / "memory.max") or _read_int(group / "memory.limit_in_bytes")
        if limit is not None and limit < min(total, _UNLIMITED_BYTES):
            used = _read_int(group / "memory.current") or _read_int(group / "memory.usage_in_bytes") or 0
            total, available = limit, min(available, max(0, limit - used + _page_cache_bytes(group)))
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        processor=_processor(),
        cores=_cores(),
        memory_bytes=total,
        available_bytes=available,
        devices=_nvidia_devices(),
    )


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


def resolve_limits(
    machine: Machine, device: Device | None, device_memory: MemoryAmount | None, host_memory: MemoryAmount
) -> Limits:
    """Turn amounts as people write them into bytes.

    A percentage of device memory is of what is free on the GPU now; a CPU has no device memory of its own, so that there
    a percentage sets no device limit, while a size does. A percentage of host memory is of what the cgroup or the
    machine allows; the limit is never above what is available now.

    Raises:
        UsageError: an amount cannot be read, or is more than there is.
    """
    host = _amount_bytes("host_memory", host_memory, machine.memory_bytes)
    if host > machine.memory_bytes:
        raise UsageError(
            f"host_memory: {host_memory} is more than the {format_bytes(machine.memory_bytes)} that this machine allows"
        )
    device_bytes: int | None = None
    if device is not None:
        device_bytes = _amount_bytes("device_memory", device_memory or "100%", device.free_bytes)
        if device_bytes > device.free_bytes:
            raise UsageError(
                f"device_memory: {device_memory} is more than the {format_bytes(device.free_bytes)} free on {device.name}"
            )
    elif device_memory is not None:
        asked = _amount_bytes("device_memory", device_memory, machine.memory_bytes)
        device_bytes = None if _is_percentage(device_memory) else asked
    return Limits(device_bytes=device_bytes, host_bytes=min(host, machine.available_bytes))


def check_amount(amount: MemoryAmount) -> None:
    """Look whether an amount can be read at all.

    Raises:
        UsageError: it cannot.
    """
    _amount_bytes("", amount, 100)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this process's cgroups; 0 where it does not tell."""
    count = 0
    for group in _memory_cgroups():
        for name in ("memory.events", "memory.oom_control"):
            for line in _read_lines(group / name):
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    count = max(count, int(value))
    return count


def _is_percentage(amount: MemoryAmount) -> bool:
    return isinstance(amount, str) and amount.strip().endswith("%")


def _amount_bytes(name: str, amount: MemoryAmount, whole_bytes: int) -> int:
    prefix = f"{name}: " if name else ""
    problem = f"{prefix}{amount!r} is not an amount of memory; {_AMOUNTS}"
    if isinstance(amount, str) and _is_percentage(amount):
        try:
            share = float(amount.strip()[:-1]) / 100
        except ValueError:
            raise UsageError(problem) from None
        if not 0 < share <= 1:
            raise UsageError(f"{prefix}{amount} is not between 0% and 100%")
        return math.floor(share * whole_bytes)
    try:
        size = TypeAdapter(ByteSize).validate_python(amount)
    except (ValidationError, OverflowError):
        raise UsageError(problem) from None
    if size <= 0:
        raise UsageError(f"{prefix}{amount!r} leaves nothing; {_AMOUNTS}")
    return int(size)


def _memory_cgroups() -> list[Path]:
    """The memory cgroups of this process, its own and those above it, of cgroup v2 or v1."""
    groups = []
    for line in _read_lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = _CGROUP_ROOT / controllers if controllers else _CGROUP_ROOT
        group = base / path.lstrip("/")
        groups += [g for g in (group, *group.parents) if g.is_relative_to(base) and g.is_dir()]
    return groups


def _page_cache_bytes(group: Path) -> int:
    """What of a cgroup's use is file cache that the kernel gives back when memory is asked for."""
    stat = dict(line.split(" ", 1) for line in _read_lines(group / "memory.stat") if " " in line)
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for line in _read_lines(_CGROUP_ROOT / "cpu.max"):
        quota, _, period = line.partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


def _processor() -> str:
    for line in _read_lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _nvidia_devices() -> tuple[Device, ...]:
    """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible, in the driver's order."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [entry.strip() for entry in visible.split(",")]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, memory = str(pynvml.nvmlDeviceGetUUID(handle)), pynvml.nvmlDeviceGetMemoryInfo(handle)
            if wanted is None or str(index) in wanted or any(w and uuid.startswith(w) for w in wanted):
                name = str(pynvml.nvmlDeviceGetName(handle))
                devices.append(Device(index, name, uuid, int(memory.total), int(memory.free)))
        return tuple(devices)
    finally:
        pynvml.nvmlShutdown()


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _read_int(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None
