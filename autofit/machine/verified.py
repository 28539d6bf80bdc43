"""The result of the last `autofit verify` on this machine, which reports name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import platformdirs

from autofit.records.units import printable

_FILE = "verify.txt"
_MOST_CHARACTERS = 200  # read of the file, which other programs may have changed


def path() -> Path:
    """Return the file that holds the result."""
    return platformdirs.user_data_path("autofit") / _FILE


def keep(text: str) -> None:
    """Keep a result in one line, if the folder is writable."""
    with contextlib.suppress(OSError):
        path().parent.mkdir(parents=True, exist_ok=True)
        path().write_text(text + "\n", encoding="utf-8")


def last() -> str:
    """Return the last result in one line; an empty text if there is none."""
    try:
        with path().open(encoding="utf-8", errors="replace") as file:
            return printable(file.read(_MOST_CHARACTERS).partition("\n")[0])
    except OSError:
        return ""
