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
# what TensorFlow leaves to the libraries (MinSystemMemory in its gpu_device.cc): by compute capability, or of a small GPU
_RESERVES_MIB = {9: 1800, 8: 1536, 7: 1050, 0: 500}
_SMALL_BYTES, _SMALL_RESERVE_MIB = 2 * 2**30, 225


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
    by_generation = next(mib for generation, mib in _RESERVES_MIB.items() if major >= generation)
    return max(0, free - _MIB * (_SMALL_RESERVE_MIB if free < _SMALL_BYTES else by_generation))


def pool_problem(device: Device, limit_bytes: int | None) -> str | None:
    """What a limit above TensorFlow's own pool means for the user's run; None for one below."""
    pool_bytes = default_pool_bytes(device)
    if limit_bytes is None or pool_bytes is None or limit_bytes <= pool_bytes:
        return None
    return (
        f"a limit of {format_bytes(limit_bytes)} is more than TensorFlow takes of {device.name} by itself (about "
        f"{format_bytes(pool_bytes)}; it leaves the rest to its libraries): what fits a trial may run out of memory in "
        "your run, unless it sets the same limit: tf.config.set_logical_device_configuration("
        f'tf.config.list_physical_devices("GPU")[0], '
        f"[tf.config.LogicalDeviceConfiguration(memory_limit={limit_bytes // _MIB})])"
    )


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
    set_growth, set_logical = context.set_memory_growth, context.set_logical_device_configuration
    set_visible = context.set_visible_devices

    @functools.wraps(set_growth)
    def set_memory_growth(dev: Any, enable: bool) -> None:
        if dev != gpu:  # growth changes when memory is taken, not how much: the limited GPU does without
            set_growth(dev, enable)

    @functools.wraps(set_logical)
    def set_logical_device_configuration(dev: Any, virtual_devices: Sequence[Any]) -> None:
        if dev == gpu:
            _require_no_less(virtual_devices, limit)
        else:
            set_logical(dev, virtual_devices)

    @functools.wraps(set_visible)
    def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
        visible = devices if isinstance(devices, list) else [devices]
        if device_type in (None, "GPU") and gpu not in visible:
            raise UsageError(
                "your code hides the GPU from TensorFlow (set_visible_devices); write cpu to tune on the CPU, or leave the "
                "GPU visible",
                key="device",
            )
        set_visible(devices, device_type)

    for changed in (set_memory_growth, set_logical_device_configuration, set_visible_devices):
        setattr(context, changed.__name__, changed)


def _require_no_less(virtual_devices: Sequence[Any], limit_mib: int) -> None:
    """Check the user's own configuration of the GPU: a larger limit changes nothing, a smaller one the search must know.

    Raises:
        UsageError: it is smaller, or there are several logical devices.
    """
    if len(virtual_devices) > 1:
        raise UsageError(f"your code splits the GPU into {len(virtual_devices)} logical devices; a trial trains on one")
    wanted = min((int(each.memory_limit or limit_mib) for each in virtual_devices), default=limit_mib)
    if wanted < limit_mib:
        raise UsageError(
            f"your code limits the GPU to {format_bytes(wanted * _MIB)} (set_logical_device_configuration), autofit to "
            f"{format_bytes(limit_mib * _MIB)}; write {wanted}MiB here, so that the search knows",
            key="device_memory",
        )
