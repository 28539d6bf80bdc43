"""What a docstring in Google's style says of a function's arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_ARGUMENT = re.compile(r"^    (\w+): ")


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """The text of each argument under "Args:", on one line."""
    found: dict[str, str] = {}
    name, inside = "", False
    for line in inspect.cleandoc(function.__doc__ or "").splitlines():
        if not line.startswith(" "):
            inside = line == "Args:"
        elif inside:
            starts = _ARGUMENT.match(line)
            name = starts[1] if starts else name
            found[name] = f"{found.get(name, '')} {line[starts.end() :] if starts else line.strip()}".strip()
    return found
