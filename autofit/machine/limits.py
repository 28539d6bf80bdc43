"""Memory limits in bytes, from amounts such as "80%" and "6GiB"."""

from __future__ import annotations

import math

from pydantic import ByteSize, TypeAdapter, ValidationError

from autofit.errors import UsageError
from autofit.records.machine import Device, Machine
from autofit.records.trial import Limits
from autofit.records.units import format_bytes

MemoryAmount = str | int
"""A percentage ("80%"), a size with a unit ("6GiB") or a number of bytes."""

_LEAST_FREE_BYTES = 1.5 * 2**30  # for the context and the libraries of a framework, and a small model (assumed)
_AMOUNTS = "write a percentage (80%), a size (6GiB) or bytes"


def resolve_limits(
    machine: Machine,
    device: Device | None,
    device_memory: MemoryAmount | None,
    host_memory: MemoryAmount,
    pool_bytes: int | None = None,
) -> Limits:
    """Convert memory amounts into limits in bytes.

    `device_memory` as a percentage refers to what is free on the GPU now, and is at most the `pool_bytes` that a program
    without a limit would have of that; a CPU has no device memory of its own, so there a percentage sets no device limit,
    while a size does. `host_memory` as a percentage refers to what the cgroup or the machine allows; the limit never
    exceeds what is available now.

    Raises:
        UsageError: an amount is malformed, or exceeds the memory of this machine or GPU.
    """
    host = _amount_bytes("host_memory", host_memory, machine.memory_bytes)
    if host > machine.memory_bytes:
        raise UsageError(
            f"{host_memory} is more than the {format_bytes(machine.memory_bytes)} that this machine allows",
            key="host_memory",
        )
    device_bytes: int | None = None
    if device is not None:
        _require_room(device)
        device_bytes = _amount_bytes("device_memory", device_memory or "100%", device.free_bytes)
        if device_bytes > device.free_bytes:
            raise UsageError(
                f"{device_memory} is more than the {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} "
                f"free on {_with_holders(device)}; lower device_memory, or end the processes that hold the rest",
                key="device_memory",
            )
        if pool_bytes is not None and _is_percentage(device_memory or "100%"):
            device_bytes = max(1, min(device_bytes, pool_bytes))
    elif device_memory is not None:
        requested = _amount_bytes("device_memory", device_memory, machine.memory_bytes)
        device_bytes = None if _is_percentage(device_memory) else requested
    return Limits(device_bytes=device_bytes, host_bytes=min(host, machine.available_bytes))


def _require_room(device: Device) -> None:
    """Raise where so little of a GPU is free that a framework cannot even start on it."""
    if device.free_bytes < min(_LEAST_FREE_BYTES, device.total_bytes / 2):
        free, total = format_bytes(device.free_bytes), format_bytes(device.total_bytes)
        raise UsageError(
            f"only {free} of {total} are free on {_with_holders(device)}; end the processes that hold the rest, choose "
            "another GPU, or write cpu",
            key="device",
        )


def _with_holders(device: Device) -> str:
    """The GPU's name, and who holds its memory."""
    return f"{device.name} ({', '.join(device.held_by)})" if device.held_by else device.name


def validate_amount(amount: MemoryAmount) -> None:
    """Check that an amount is well formed.

    Raises:
        UsageError: it is not.
    """
    _amount_bytes(None, amount, 100)


def _is_percentage(amount: MemoryAmount) -> bool:
    return isinstance(amount, str) and amount.strip().endswith("%")


def _amount_bytes(key: str | None, amount: MemoryAmount, whole_bytes: int) -> int:
    problem = f"{amount!r} is not an amount of memory; {_AMOUNTS}"
    if isinstance(amount, str) and _is_percentage(amount):
        try:
            share = float(amount.strip()[:-1]) / 100
        except ValueError:
            raise UsageError(problem, key=key) from None
        if not 0 < share <= 1:
            raise UsageError(f"{amount} is not between 0% and 100%", key=key)
        return math.floor(share * whole_bytes)
    try:
        size = TypeAdapter(ByteSize).validate_python(amount)
    except (ValidationError, OverflowError):
        raise UsageError(problem, key=key) from None
    if size <= 0:
        raise UsageError(f"{amount!r} is not above zero; {_AMOUNTS}", key=key)
    return int(size)
