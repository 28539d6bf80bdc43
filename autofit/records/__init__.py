"""Plain values that all other packages share: frozen dataclasses with units in the field names, and this distribution."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "keras-autofit"  # the name on PyPI; "autofit" is another project there


def install_command(extra: str | None = None) -> str:
    """Return the command that installs autofit, with an optional extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


__version__ = version_of(DISTRIBUTION) or "0+unknown"
