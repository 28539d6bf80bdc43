"""Convert memory amounts such as "80%" and "6GiB" into limits in bytes."""

from __future__ import annotations

import contextlib
import math

from pydantic import ByteSize, TypeAdapter

from autofit.errors import UsageError
from autofit.records import cuda_memory
from autofit.records.machine import Device, Machine
from autofit.records.trial import Limits
from autofit.records.units import format_bytes

# the message about a malformed amount of memory
AMOUNTS = "write a percentage up to 100%, a size (6GiB) or bytes"


def resolve_limits(
    machine: Machine,
    device: Device | None,
    device_memory: str | int,
    host_memory: str | int,
    pool_bytes: int | None = None,
) -> Limits:
    """Convert memory amounts that are valid (see `check_amount`) into limits in bytes.

    `device` is None for the CPU.

    A percentage in `host_memory` is a share of the RAM, or of the cgroup's limit if that is lower;
    the limit is never more than what is available now. A percentage in `device_memory` is a share
    of what is free on a GPU now, and at most `pool_bytes`, which a program without a limit takes;
    None if unknown. On a CPU, only a size sets a limit.
    """
    host_bytes = int(_bytes_of(host_memory, machine.memory_bytes))
    if host_bytes > machine.memory_bytes:
        total = format_bytes(machine.memory_bytes)
        raise UsageError(
            f"{host_memory} is more than the {total} that this machine allows; lower host_memory",
            key="host_memory",
        )
    device_bytes = _device_bytes(device, device_memory, pool_bytes)
    return Limits(device_bytes, min(host_bytes, machine.available_bytes))


def _device_bytes(
    device: Device | None, amount: str | int, pool_bytes: int | None
) -> int | None:
    if device is None:
        return None if _is_percentage(amount) else int(_bytes_of(amount, 0))
    free = format_bytes(device.free_bytes)
    total = format_bytes(device.total_bytes)
    name = device.name
    if device.held_by:
        name += f" ({', '.join(device.held_by)})"
    remedy = "end the processes that hold the rest"
    if device.free_bytes < min(cuda_memory.LEAST_FREE_BYTES, device.total_bytes / 2):
        raise UsageError(
            f"only {free} of {total} is free on {name}; {remedy}, choose another GPU, or write cpu",
            key="device",
        )
    device_bytes = int(_bytes_of(amount, device.free_bytes))
    if device_bytes > device.free_bytes:
        raise UsageError(
            f"{amount} is more than the {free} free of {total} on {name}; lower device_memory, or "
            f"{remedy}",
            key="device_memory",
        )
    if pool_bytes is None or not _is_percentage(amount):
        return device_bytes
    return max(1, min(device_bytes, pool_bytes))


def check_amount(amount: str | int) -> str | int:
    """Return an amount, or raise ValueError if it is malformed."""
    whole = 100
    most = whole if _is_percentage(amount) else math.inf
    with contextlib.suppress(ValueError, OverflowError):
        if 0 < _bytes_of(amount, whole) <= most:
            return amount
    raise ValueError(AMOUNTS)


def _is_percentage(amount: str | int) -> bool:
    return str(amount).strip().endswith("%")


def _bytes_of(amount: str | int, whole_bytes: int) -> float:
    if _is_percentage(amount):
        return float(str(amount).strip()[:-1]) / 100 * whole_bytes
    return int(TypeAdapter(ByteSize).validate_python(amount))
