"""TensorFlow on a GPU: the size of its memory pool, the enforcement of a limit, and the caches of compiled code.

A limit must hold whatever the user's code configures. TensorFlow itself does not ensure that: if a GPU has a limit, a call
that turns on memory growth raises an error, although TensorFlow's guide contains this call; a later limit replaces an
earlier one; and a program that hides the GPU trains on the CPU without a message. All public functions for these settings
call methods of one context object, and `hold` replaces these methods.

A tune starts about twenty processes, and each would compile the same steps again. XLA therefore caches compiled programs
and chosen kernels in the tune's folder. CUDA has its own cache, which all programs share: for GPUs of compute capability
9.0 and newer, CUDA compiles some of TensorFlow's kernels, which take more space than this cache has by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.machine import Device
from autofit.records.units import format_bytes

_MIB = 2**20
_CONTEXT_BYTES = 500 * _MIB  # CUDA's context, allocated before the pool (assumed)
# memory that TensorFlow leaves to libraries, by compute capability and for a small GPU (MinSystemMemory in gpu_device.cc)
_RESERVES_MIB = {9: 1800, 8: 1536, 7: 1050, 0: 500}
_SMALL_BYTES, _SMALL_RESERVE_MIB = 2 * 2**30, 225
_TF_FLAGS, _XLA_FLAGS = "TF_XLA_FLAGS", "XLA_FLAGS"
_FIRST_VERSION = (2, 21)  # the first version known to have the flags: XLA aborts on an unknown flag
_CUDA_CACHE_BYTES = 4 * 2**30  # the most that CUDA allows


def cache_variables(present: Mapping[str, str], folder: Path, version: str) -> dict[str, str]:
    """Return the environment variables that turn on the caches; settings `present` in the user's environment are kept."""
    variables = {"CUDA_CACHE_MAXSIZE": present.get("CUDA_CACHE_MAXSIZE", str(_CUDA_CACHE_BYTES))}
    major, minor = (int(part) if part.isdigit() else 0 for part in (*version.split("."), "0")[:2])
    if (major, minor) < _FIRST_VERSION:
        return variables
    for name, flag in (
        (_TF_FLAGS, f"--tf_xla_persistent_cache_directory={folder}"),
        (_XLA_FLAGS, f"--xla_gpu_per_fusion_autotune_cache_dir={folder}"),
    ):
        flags = present.get(name, "")
        if flag.partition("=")[0] not in flags:
            variables[name] = f"{flags} {flag}".strip()
    return variables


def allocator_problem(environment: Mapping[str, str]) -> str | None:
    """Return why the allocator that the environment selects makes trials unreliable; None for TensorFlow's default."""
    chosen = environment.get("TF_GPU_ALLOCATOR", "").lower()
    if chosen not in ("cuda_malloc", "cuda_malloc_async"):
        return None
    effect = "peaks are not counted" if chosen == "cuda_malloc" else "a peak above the limit is noticed only afterwards"
    return (
        f"TF_GPU_ALLOCATOR={chosen} is set: the limit of device memory is not enforced, and {effect}. Unset this variable"
    )


def default_pool_bytes(device: Device) -> int | None:
    """Return the pool that TensorFlow allocates without a limit, in bytes; None without a known compute capability."""
    if device.compute_capability is None:
        return None
    free, major = device.free_bytes - _CONTEXT_BYTES, device.compute_capability[0]
    by_generation = next(mib for generation, mib in _RESERVES_MIB.items() if major >= generation)
    return max(0, free - _MIB * (_SMALL_RESERVE_MIB if free < _SMALL_BYTES else by_generation))


def pool_problem(device: Device, limit_bytes: int | None) -> str | None:
    """Return a warning if the limit is above TensorFlow's default pool, which is all that the user's run gets; or None."""
    pool_bytes = default_pool_bytes(device)
    if limit_bytes is None or pool_bytes is None or limit_bytes <= pool_bytes:
        return None
    return (
        f"the limit of {format_bytes(limit_bytes)} is more than TensorFlow takes of {device.name} by default (about "
        f"{format_bytes(pool_bytes)}; it leaves the rest to its libraries); a config that fits in a trial may run out of "
        "memory in your run. Set the same limit in your program: tf.config.set_logical_device_configuration("
        f'tf.config.list_physical_devices("GPU")[0], '
        f"[tf.config.LogicalDeviceConfiguration(memory_limit={limit_bytes // _MIB})])"
    )


def hold(context: Any, gpu: Any, limit_bytes: int) -> None:
    """Set a GPU's limit, in whole MiB, and keep the user's code from changing it; call it before that code is loaded.

    `context` is `tensorflow.python.eager.context.context()`, and `gpu` is a `PhysicalDevice`.
    """
    from tensorflow.config import LogicalDeviceConfiguration  # heavy: must stay out of the parent

    limit = max(1, limit_bytes // _MIB)
    context.set_logical_device_configuration(gpu, [LogicalDeviceConfiguration(memory_limit=limit)])
    set_growth, set_logical = context.set_memory_growth, context.set_logical_device_configuration
    set_visible = context.set_visible_devices

    def set_memory_growth(dev: Any, enable: bool) -> None:
        if dev != gpu:  # ignored for the limited GPU: growth changes when memory is taken, not how much
            set_growth(dev, enable)

    def set_logical_device_configuration(dev: Any, virtual_devices: Sequence[Any]) -> None:
        if dev != gpu:
            set_logical(dev, virtual_devices)
            return
        if len(virtual_devices) > 1:
            raise UsageError(
                f"your code splits the GPU into {len(virtual_devices)} logical devices; a trial trains on one. Remove the "
                "split"
            )
        wanted = min((int(each.memory_limit or limit) for each in virtual_devices), default=limit)
        if wanted < limit:  # the search must know a lower limit; a higher one has no effect
            raise UsageError(
                f"your code limits the GPU to {format_bytes(wanted * _MIB)} (set_logical_device_configuration), less than "
                f"autofit's limit of {format_bytes(limit * _MIB)}; set device_memory: {wanted}MiB",
                key="device_memory",
            )

    def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
        visible = devices if isinstance(devices, list) else [devices]
        if device_type in (None, "GPU") and gpu not in visible:
            raise UsageError(
                "your code hides the GPU from TensorFlow (set_visible_devices); leave it visible, or set device: cpu",
                key="device",
            )
        set_visible(devices, device_type)

    for changed in (set_memory_growth, set_logical_device_configuration, set_visible_devices):
        setattr(context, changed.__name__, changed)
