"""Plain values that all other packages share: frozen dataclasses with units in the field names, and
this distribution.
"""

from __future__ import annotations

import importlib.metadata
import sys

DISTRIBUTION = "keras-autofit"  # the name on PyPI; "autofit" is another project there
DEFAULT_BACKEND = "tensorflow"  # of Keras
# for which TensorFlow 2.21 has no wheels, as in the dependencies of this distribution
FIRST_PYTHON_WITHOUT_TENSORFLOW = (3, 14)


def install_command(extra: str | None = None) -> str:
    """Return the command that installs autofit, with an optional extra."""
    return (
        f"pip install '{DISTRIBUTION}[{extra}]'"
        if extra
        else f"pip install {DISTRIBUTION}"
    )


def tensorflow_remedy() -> str:
    """Say what to do where TensorFlow is not installed."""
    if sys.version_info[:2] < FIRST_PYTHON_WITHOUT_TENSORFLOW:
        return "run pip install tensorflow"
    major, minor = FIRST_PYTHON_WITHOUT_TENSORFLOW
    return f"use Python {major}.{minor - 1}, for which it has wheels"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


__version__ = version_of(DISTRIBUTION) or "0+unknown"
