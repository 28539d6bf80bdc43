"""Read Keras's configuration file, and the backend that Keras would use, without loading Keras."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TENSORFLOW = "tensorflow"
"""The name of Keras's default backend."""

# the defaults that Keras writes to its file when it is first imported
_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "backend": TENSORFLOW, "image_data_format": "channels_last"}


def keras_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return Keras's settings: the defaults, overridden by those in its file if that can be read and is valid."""
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")  # the same choice as Keras's
    file = Path(environment.get("KERAS_HOME", home / ".keras")).expanduser() / "keras.json"
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError):
        settings = None
    return {**_DEFAULTS, **(settings if isinstance(settings, dict) else {})}


def backend_name(environment: Mapping[str, str]) -> str:
    """Return the name of the backend that Keras would load: from `KERAS_BACKEND`, else its file, else TensorFlow."""
    return environment.get("KERAS_BACKEND") or str(keras_settings(environment)["backend"] or TENSORFLOW)
