"""Values of a tuning file that contain environment variables: shown and stored as written, passed on as their value."""

from __future__ import annotations

from typing import Any

_LEAST_CHARACTERS = 4  # of a value that is replaced in a text: a shorter one cannot be a secret, and occurs in common words


class Written(str):
    """A text with `${NAME}` as it is written in a file; `value` is the text or number that it stands for."""

    value: Any
    variables: dict[str, str]  # the text of each variable, by its value


def expanded(part: Any) -> Any:
    """Replace a `Written` by its value; in mappings and lists, do the same for each item."""
    if isinstance(part, dict):
        return {key: expanded(inner) for key, inner in part.items()}
    if isinstance(part, list):
        return [expanded(inner) for inner in part]
    return part.value if isinstance(part, Written) else part


def as_written(text: str, part: Any) -> str:
    """Replace in a text the value of each `Written` in `part`, which may be a secret, by what the file has."""
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            text = as_written(text, inner)
    if isinstance(part, Written):
        for value, written in {str(part.value): str(part), **part.variables}.items():
            for form in {value, repr(value)[1:-1]}:  # a message may show a value as Python writes it
                text = text.replace(form, written) if len(value) >= _LEAST_CHARACTERS else text
    return text
