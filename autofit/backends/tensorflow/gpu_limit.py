"""Hold the memory limit of a GPU whatever the user's code configures when it is loaded.

TensorFlow refuses memory growth where there is a limit, which would end any program that asks for it as its guide shows; it
lets a later limit replace an earlier one, and a GPU that is not visible makes the program train on the CPU without a word.
All of its public functions for this call methods of one context object.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from autofit.errors import UsageError
from autofit.records.units import format_bytes

_MIB = 2**20


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
