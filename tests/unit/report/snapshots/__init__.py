"""Texts as people see them; `AUTOFIT_SNAPSHOTS=write pytest tests/unit/report` writes them anew."""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent


def matches_snapshot(text, name):
    """Whether a text is the same as in the file of that name beside this one, spaces at the ends of
    lines aside.
    """
    shown = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    file = _FOLDER / name
    if os.environ.get("AUTOFIT_SNAPSHOTS") == "write":
        file.write_text(shown)
    return shown == file.read_text()
