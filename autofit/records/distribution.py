"""The distribution of this package: its name on PyPI, its version and the commands that install it."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "keras-autofit"
"""On PyPI, "autofit" is another project."""


def install_command(extra: str | None = None) -> str:
    """The command that installs autofit, with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


__version__ = _version()
