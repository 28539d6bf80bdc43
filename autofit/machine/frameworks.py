"""Which framework of this process has taken a GPU, asked of the framework itself.

The driver's answer is not enough: in a container it may name no process, those of the host, or this one with 0 bytes, and
it lists a process that has only counted its GPUs as one that uses CUDA. What is not imported is not asked, so that asking
starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def on_gpu() -> str | None:
    """The name of a framework that has memory on a GPU; None where none has, or none can say."""
    for name, (module, is_on_gpu) in _FRAMEWORKS.items():
        loaded = sys.modules.get(module)
        if loaded is None:
            continue
        try:
            if is_on_gpu(loaded):
                return name
        except Exception:  # private parts of another version: then the driver's answer has to do
            continue
    return None


def _tensorflow(context: Any) -> bool:
    """Whether there is a context, which the first operation makes, with a GPU."""
    current = context.context_safe()
    return getattr(current, "_context_handle", None) is not None and bool(current.list_logical_devices("GPU"))


def _torch(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _jax(bridge: Any) -> bool:
    return not {"cuda", "gpu", "rocm"}.isdisjoint(bridge._backends)


_FRAMEWORKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "TensorFlow": ("tensorflow.python.eager.context", _tensorflow),
    "torch": ("torch", _torch),
    "JAX": ("jax._src.xla_bridge", _jax),
}
