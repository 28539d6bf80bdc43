"""Read Keras's configuration without loading Keras: its file, and the backend that it selects."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autofit.errors import UsageError

TENSORFLOW = "tensorflow"
"""The name of Keras's default backend."""

_VARIABLE = "KERAS_BACKEND"
# Keras's defaults, which it writes into its file when it is first imported
_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "backend": TENSORFLOW, "image_data_format": "channels_last"}


def keras_file(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in Keras's file; empty if there is none or Keras ignores it."""
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")  # as Keras does
    file = Path(environment.get("KERAS_HOME", home / ".keras")).expanduser() / "keras.json"
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def settings_in_force(
    distributions: Iterable[str], switches: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings that affect a step's speed and memory: versions, switches, and Keras's file with its defaults."""
    return {
        **{name: importlib.metadata.version(name) for name in distributions},
        **switches,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "keras.json": json.dumps({**_DEFAULTS, **keras_file(environment)}, sort_keys=True),
    }


def import_keras(backend: str) -> None:
    """Import Keras and its backend.

    Raises:
        UsageError: Keras is configured for another backend.
    """
    import keras  # heavy: must stay out of the parent

    if keras.backend.backend() != backend:
        raise UsageError(f"Keras is configured for {keras.backend.backend()}; set KERAS_BACKEND={backend}")


def backend_name(environment: Mapping[str, str]) -> str:
    """Return the backend that Keras would load: from `KERAS_BACKEND`, else from its file, else TensorFlow."""
    return environment.get(_VARIABLE) or str(keras_file(environment).get("backend") or _DEFAULTS["backend"])
