"""One file per Keras backend: set the device limit, read the peak, recognise an OOM.

A backend is chosen by `KERAS_BACKEND` as Keras itself does; so far TensorFlow is the one that is known.
"""

from __future__ import annotations

import os

from autofit.backends.protocol import Backend
from autofit.backends.tensorflow.backend import TensorFlow
from autofit.errors import UsageError

__all__ = ["Backend", "current"]


def current() -> Backend:
    """The backend that Keras will use in this environment.

    Raises:
        UsageError: it is one that autofit does not know.
    """
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    if name != "tensorflow":
        raise UsageError(f"KERAS_BACKEND={name} is not supported yet; autofit takes tensorflow")
    return TensorFlow()
