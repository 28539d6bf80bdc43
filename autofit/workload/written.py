"""Values of a tuning file that contain environment variables: shown and stored as written, passed on as their value."""

from __future__ import annotations

from typing import Any


class Written(str):
    """A text with `${NAME}` as it is written in a file; `value` is the text or number that it stands for."""

    value: Any


def expanded(part: Any) -> Any:
    """Replace a `Written` by its value; in mappings and lists, do the same for each item."""
    if isinstance(part, dict):
        return {key: expanded(inner) for key, inner in part.items()}
    if isinstance(part, list):
        return [expanded(inner) for inner in part]
    return part.value if isinstance(part, Written) else part
