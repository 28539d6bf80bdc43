"""Values in a tuning file that come from environment variables and may be secret.

The user's functions receive the values. Everything that autofit shows, stores or sends names the variable instead:
`os.environ["NAME"]` in code, `${NAME}` in other text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

_SHORTEST = 4  # characters: a shorter value is not hidden in other text, where it may occur by chance


@dataclass(frozen=True)
class Source:
    """The origin of a value from environment variables.

    Attributes:
        written: the text in the file.
        code: Python code that evaluates to the value; it needs `import os`.
        variables: the name and value of each environment variable in the text.
    """

    written: str
    code: str
    variables: tuple[tuple[str, str], ...]


class FromEnvironment:
    """A value from environment variables. Its `repr` is the code that reads it; pickling turns it into a plain value."""

    source: Source

    def __repr__(self) -> str:
        return self.source.code

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain_type = next(kind for kind in (str, int, float) if isinstance(self, kind))
        return plain_type, (plain(self),)


_KINDS: dict[type, Any] = {kind: type(kind.__name__, (FromEnvironment, kind), {}) for kind in (str, int, float)}


def marked(value: Any, source: Source) -> Any:
    """Return a string or number together with its source; a value of any other type is returned unchanged."""
    if type(value) not in _KINDS:
        return value
    made = _KINDS[type(value)](value)
    made.source = source if isinstance(value, str) else replace(source, code=f"{type(value).__name__}({source.code})")
    return made


def plain(value: Any) -> Any:
    """Return a value without its source; in mappings and lists, do the same for each item."""
    return _replaced(value, lambda inner: str.__str__(inner) if isinstance(inner, str) else +inner)


def shown(value: Any) -> Any:
    """Return a value as the text in the file; in mappings and lists, do the same for each item."""
    return _replaced(value, lambda inner: inner.source.written)


def is_from_environment(value: Any) -> bool:
    """Return whether a value, or an item of its mappings and lists, comes from the environment."""
    return bool(_within(value))


def hiding(*values: Any) -> Callable[[str], str]:
    """Return a function that takes a text and replaces each value of an environment variable in `values` by `${NAME}`."""
    names = {text: name for value in values for inner in _within(value) for name, text in inner.source.variables}
    texts = sorted((text for text in names if len(text) >= _SHORTEST), key=len, reverse=True)
    if not texts:
        return lambda text: text
    pattern = re.compile("|".join(map(re.escape, texts)))
    return lambda text: pattern.sub(lambda match: f"${{{names[match.group()]}}}", text)


def _replaced(value: Any, replacement: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, replacement) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, replacement) for inner in value]
    return replacement(value) if isinstance(value, FromEnvironment) else value


def _within(value: Any) -> list[FromEnvironment]:
    found: list[FromEnvironment] = []
    _replaced(value, found.append)
    return found
