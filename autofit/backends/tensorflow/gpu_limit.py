"""The memory pool of a GPU: how large TensorFlow makes it, and how to hold a limit whatever the user's code configures.

TensorFlow refuses memory growth where there is a limit, which would end any program that asks for it as its guide shows; it
lets a later limit replace an earlier one, and a GPU that is not visible makes the program train on the CPU without a word.
All of its public functions for this call methods of one context object.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.records.machine import Device
from autofit.records.units import format_bytes

_MIB = 2**20
_CONTEXT_BYTES = 500 * _MIB  # of CUDA's context, which is taken before the pool (assumed)
_RESERVES_MIB = {9: 1800, 8: 1536, 7: 1050}  # by compute capability (MinSystemMemory in TensorFlow's gpu_device.cc)
_LEAST_RESERVE_MIB, _RESERVE_SHARE = 300, 0.05  # of older GPUs (ditto)


def allocator_problem(environment: Mapping[str, str]) -> str | None:
    """What is wrong with the allocator that the environment chooses for GPUs; None for TensorFlow's own."""
    chosen = environment.get("TF_GPU_ALLOCATOR", "").lower()
    if chosen not in ("cuda_malloc", "cuda_malloc_async"):
        return None
    seen = "no peak is counted" if chosen == "cuda_malloc" else "a peak above it is found afterwards only"
    return f"TF_GPU_ALLOCATOR={chosen}: no limit of device memory holds a trial back, and {seen}"


def default_pool_bytes(device: Device) -> int | None:
    """The pool that TensorFlow makes without a limit: what is free but for a context, and a reserve for the libraries.

    None where the driver does not report the GPU's generation.
    """
    if device.compute_capability is None:
        return None
    free, major = device.free_bytes - _CONTEXT_BYTES, device.compute_capability[0]
    older = max(_LEAST_RESERVE_MIB * _MIB, int(_RESERVE_SHARE * free))
    reserve = next((mib * _MIB for generation, mib in _RESERVES_MIB.items() if major >= generation), older)
    return max(0, free - reserve)


def hold(context: Any, gpu: Any, limit_bytes: int) -> None:
    """Give a GPU a limit; called before the user's code is loaded.

    Args:
        context: of TensorFlow, `tensorflow.python.eager.context.context()`.
        gpu: a `PhysicalDevice`.
        limit_bytes: rounded down to whole MiB, as TensorFlow counts.
    """
    from tensorflow.config import LogicalDeviceConfiguration  # heavy: must stay out of the parent

    limit = max(1, limit_bytes // _MIB)
    context.set_logical_device_configuration(gpu, [LogicalDeviceConfiguration(memory_limit=limit)])
    for change in (_set_memory_growth, _set_logical_devices, _set_visible_devices):
        name, changed = change(context, gpu, limit)
        setattr(context, name, functools.wraps(getattr(context, name))(changed))


def _set_memory_growth(context: Any, gpu: Any, limit: int) -> tuple[str, Any]:
    """Growth changes when memory is taken, not how much: the limited GPU does without."""
    name = "set_memory_growth"
    original = getattr(context, name)

    def changed(dev: Any, enable: bool) -> None:
        if dev != gpu:
            original(dev, enable)

    return name, changed


def _set_logical_devices(context: Any, gpu: Any, limit: int) -> tuple[str, Any]:
    """A limit of the user's that is larger changes nothing; one that is smaller, the search must know."""
    name = "set_logical_device_configuration"
    original = getattr(context, name)

    def changed(dev: Any, virtual_devices: Sequence[Any]) -> None:
        if dev != gpu:
            original(dev, virtual_devices)
        elif len(virtual_devices) > 1:
            raise UsageError(f"your code splits the GPU into {len(virtual_devices)} logical devices; a trial trains on one")
        elif virtual_devices and (virtual_devices[0].memory_limit or limit) < limit:
            wanted = format_bytes(virtual_devices[0].memory_limit * _MIB)
            raise UsageError(
                f"your code limits the GPU to {wanted} ({name}), autofit to {format_bytes(limit * _MIB)}; write "
                f"{int(virtual_devices[0].memory_limit)}MiB here, so that the search knows",
                key="device_memory",
            )

    return name, changed


def _set_visible_devices(context: Any, gpu: Any, limit: int) -> tuple[str, Any]:
    name = "set_visible_devices"
    original = getattr(context, name)

    def changed(devices: Any, device_type: str | None = None) -> None:
        visible = devices if isinstance(devices, list) else [devices]
        if device_type in (None, "GPU") and gpu not in visible:
            raise UsageError(
                f"your code hides the GPU from TensorFlow ({name}); write cpu to tune on the CPU, or leave the GPU visible",
                key="device",
            )
        original(devices, device_type)

    return name, changed
