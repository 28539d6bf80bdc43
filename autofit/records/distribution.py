"""The distribution of this package: its name on PyPI, its version, and how to install it."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "keras-autofit"
"""The name on PyPI; "autofit" is another project there."""


def install_command(extra: str | None = None) -> str:
    """Return the command that installs autofit, with an optional extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


__version__ = _version()
