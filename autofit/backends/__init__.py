"""One folder per Keras backend: device limits, memory peaks, signs of OOM, memory estimates.

`KERAS_BACKEND` selects the backend, as in Keras itself. TensorFlow is the only one so far.
"""

from __future__ import annotations

import os

from autofit.backends.protocol import Backend
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError

__all__ = ["Backend", "current"]


def current() -> Backend:
    """Return the backend that Keras uses in this environment.

    Raises:
        UsageError: autofit does not support it.
    """
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    if name != "tensorflow":
        raise UsageError(f"KERAS_BACKEND={name} is not supported yet; set KERAS_BACKEND=tensorflow")
    return TensorFlow()
