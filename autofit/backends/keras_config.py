"""Keras's own configuration, read without loading Keras: its file, and the backend that it selects."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VARIABLE = "KERAS_BACKEND"
# Keras's own defaults, which it writes into its file when it is first imported
_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow", "image_data_format": "channels_last"}


def keras_file(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in Keras's file, where Keras looks for it; empty where there is none or Keras ignores it."""
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")  # as Keras does
    file = Path(environment.get("KERAS_HOME", home / ".keras")).expanduser() / "keras.json"
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def settings_in_force(environment: Mapping[str, str]) -> str:
    """Return the file's settings, with Keras's defaults for what it leaves out, as JSON."""
    return json.dumps({**_DEFAULTS, **keras_file(environment)}, sort_keys=True)


def backend_name(environment: Mapping[str, str]) -> str:
    """Return the backend that Keras would load: that of `KERAS_BACKEND`, or else of its file, or else TensorFlow."""
    return environment.get(_VARIABLE) or str(keras_file(environment).get("backend") or _DEFAULTS["backend"])
