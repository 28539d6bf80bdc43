"""The supported Keras backends, one folder each: device limits, memory peaks, OOM detection and memory estimates.

As in Keras itself, `KERAS_BACKEND` selects the backend, or keras.json if that variable is not set. A tune may name a
different backend. Importing this package does not load any backend.
"""

from __future__ import annotations

import importlib.util
import os

from autofit.backends.jax.backend import Jax
from autofit.backends.protocol import TENSORFLOW, Backend, backend_name
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.backends.torch.backend import Torch
from autofit.errors import UsageError
from autofit.records.distribution import install_command

__all__ = ["NAMES", "Backend", "current", "named", "remedy_for_missing"]

_BACKENDS: dict[str, type[Backend]] = {backend.name: backend for backend in (TensorFlow, Jax, Torch)}
NAMES = tuple(_BACKENDS)  # the supported backends, by the names that Keras gives them


def current() -> Backend:
    """Return the backend that Keras uses in this environment; raise UsageError if it is not supported or installed."""
    return _made(backend_name(os.environ), key=None)


def named(name: str | None) -> Backend:
    """Return the backend with this name; None means the one that Keras uses in this environment (see `current`)."""
    return current() if name is None else _made(name, key="backend")


def remedy_for_missing(name: str, selector: str = "KERAS_BACKEND") -> str:
    """Say how to install a missing backend, and which installed ones may be used; `selector` is a variable or argument."""
    command = "pip install tensorflow" if name == TENSORFLOW else install_command(name)  # the other backends are extras
    others = [other for other in NAMES if other != name and importlib.util.find_spec(other) is not None]
    return f"run {command}" + (f", or set {selector} to {' or '.join(others)}" if others else "")


def _made(name: str, key: str | None) -> Backend:
    if name not in _BACKENDS:
        how = "" if key else "; set KERAS_BACKEND to one of them"
        raise UsageError(
            f"{name!r} is not a supported backend; the supported ones are {', '.join(_BACKENDS)}{how}", key=key
        )
    if importlib.util.find_spec(name) is None:
        how = "" if key else " (set by KERAS_BACKEND or keras.json, or Keras's default)"
        remedy = remedy_for_missing(name, selector=key or "KERAS_BACKEND")
        raise UsageError(f"the backend {name}{how} is not installed; {remedy}", key=key)
    return _BACKENDS[name]()
