"""The supported Keras backends, one folder each; importing this package does not load any of
them.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

from autofit.backends.jax.backend import Jax
from autofit.backends.protocol import Backend, keras_settings
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.backends.torch.backend import Torch
from autofit.errors import UsageError
from autofit.records import DEFAULT_BACKEND, install_command, tensorflow_remedy

BackendName = Literal["tensorflow", "jax", "torch"]  # as Keras calls them
# by their names
BACKENDS: dict[str, type[Backend]] = {
    backend.name: backend for backend in (TensorFlow, Jax, Torch)
}
NAMES = tuple(BACKENDS)


def current() -> Backend:
    """Return the backend that Keras uses in this environment; raise UsageError if it is not
    supported or installed.
    """
    return named(None)


def named(name: str | None) -> Backend:
    """Return the backend with this name; None means the one that Keras uses in this environment
    (see `current`).
    """
    key = None if name is None else "backend"
    selector = key or "KERAS_BACKEND"
    where = "" if key else " (set by KERAS_BACKEND or keras.json, or Keras's default)"
    name = (
        name
        or os.environ.get("KERAS_BACKEND")
        or str(keras_settings()["backend"] or DEFAULT_BACKEND)
    )
    if name not in BACKENDS:
        raise UsageError(
            f"{name!r} is not a supported backend; set {selector} to one of {', '.join(NAMES)}",
            key=key,
        )
    if importlib.util.find_spec(name) is None:
        # the others are extras
        remedy = (
            tensorflow_remedy()
            if name == DEFAULT_BACKEND
            else f"run {install_command(name)}"
        )
        others = " or ".join(filter(importlib.util.find_spec, NAMES))
        if others:
            remedy += f", or set {selector} to {others}"
        elif name == DEFAULT_BACKEND:
            remedy += f", or run {install_command('jax')} and set {selector} to jax"
        raise UsageError(
            f"the backend {name}{where} is not installed; {remedy}", key=key
        )
    return BACKENDS[name]()
