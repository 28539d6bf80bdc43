"""A YAML file as values that know their places: read whole, environment variables put in, nothing said twice.

`${NAME}` in a value is the environment variable NAME, `${NAME:-default}` the default where it is not set or empty, `$${` a
plain `${`. What follows is read as YAML again: `batch_size: ${BATCH:-32}` is a number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autofit.errors import ConfigError

_MOST_BYTES = 2**20  # a hundred times what a long file has
_MOST_VALUES = 100_000  # with aliases unfolded; a few lines of them can stand for billions
_VARIABLE = re.compile(r"\$(\$?)\{(?:(\w+)(?::-([^}]*))?)?([^}]*)(\}?)")
_UNREADABLE = (ValueError, LookupError, AttributeError)  # a date that no calendar has; !!bool maybe; !!timestamp soon
_YAML_TABS = "found character '\\t' that cannot start any token"


@dataclass(frozen=True)
class Document:
    """What a file says, and where it says it."""

    name: str
    value: Any
    root: yaml.Node

    def error(self, keys: tuple[int | str, ...], problem: str, shown: str | None = None) -> ConfigError:
        """An error at the deepest of these keys that the file has; `shown` is how the key is called, dotted otherwise."""
        node = self._node(keys)
        return ConfigError(self.name, *_place(node.start_mark), shown or ".".join(map(str, keys)) or None, problem)

    def _node(self, keys: tuple[int | str, ...]) -> yaml.Node:
        """The deepest of the keys as it stands in the file; of a list the item."""
        node, found = self.root, self.root
        for key in keys:
            if isinstance(node, yaml.MappingNode):
                pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
                if pair is None:
                    break
                found, node = pair
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                found = node = node.value[key]
        return found


def read(path: str | Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: it cannot be read, is not YAML, is empty, says a key twice, or names a variable that is not set.
    """
    name = str(path)
    try:
        raw = Path(path).read_bytes()
        text = raw.decode()
    except OSError as error:
        raise ConfigError(name, None, None, None, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(name, line, None, None, "is not a text file in UTF-8") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(name, None, None, None, f"has {len(raw):,} bytes; a tuning file has a few hundred")
    try:
        return _document(name, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else (None, None)
        raise ConfigError(name, place[0], place[1], None, f"is not YAML: {_told(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(name, line, None, None, f"is not YAML: it holds the character #x{error.character:04x}") from None
    except RecursionError:
        raise ConfigError(name, None, None, None, "is nested too deeply") from None


def _document(name: str, text: str) -> Document:
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    if root is None:
        raise ConfigError(name, 1, 1, None, "is empty; it must begin with build_model: and data:")
    if _count(root, {}) > _MOST_VALUES:
        raise ConfigError(name, 1, 1, None, f"its aliases unfold to more than {_MOST_VALUES:,} values")
    _check_keys(name, root)
    _put_in_variables(name, root, loader, set())
    try:
        return Document(name, loader.construct_document(root), root)
    except _UNREADABLE as error:
        node = _unreadable(root, set()) or root
        why = str(error) if isinstance(error, ValueError) else f"it cannot be read as {node.tag.rpartition(':')[2]}"
        raise ConfigError(name, *_place(node.start_mark), None, f"{node.value or repr('')} is not allowed: {why}") from None


def _unreadable(node: yaml.Node, seen: set[int]) -> yaml.Node | None:
    """The first plain value that YAML's own types cannot take."""
    if isinstance(node, yaml.ScalarNode):
        try:
            yaml.SafeLoader("").construct_object(node)
        except _UNREADABLE:
            return node
        return None
    if id(node) in seen:
        return None
    seen.add(id(node))
    children = [n for pair in node.value for n in pair] if isinstance(node, yaml.MappingNode) else node.value
    return next((found for child in children if (found := _unreadable(child, seen)) is not None), None)


def _count(node: yaml.Node, known: dict[int, float]) -> float:
    """Values in a tree, aliases unfolded; one that holds itself is infinite."""
    if isinstance(node, yaml.ScalarNode):
        return 1.0
    if id(node) not in known:
        known[id(node)] = float("inf")
        children = [n for pair in node.value for n in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1.0 + sum(_count(child, known) for child in children)
    return known[id(node)]


def _check_keys(name: str, node: yaml.Node) -> None:
    """Say which key stands twice."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(name, item)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[Any, yaml.Node] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in first:
                line = first[key.value].start_mark.line + 1
                raise ConfigError(name, *_place(key.start_mark), key.value, f"stands here twice, first in line {line}")
            first[key.value] = key
        _check_keys(name, value)


def _put_in_variables(name: str, node: yaml.Node, loader: yaml.SafeLoader, done: set[int]) -> None:
    """Put environment variables into the values below a node; into one that aliases share, once."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _put_in_variables(name, value, loader, done)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _put_in_variables(name, item, loader, done)
    elif isinstance(node, yaml.ScalarNode) and "${" in node.value:
        try:
            node.value = expand(node.value, os.environ)
        except ValueError as error:
            raise ConfigError(name, *_place(node.start_mark), None, str(error)) from None
        if node.style is None:
            node.tag = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]  # untyped stub


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Put environment variables into a text.

    Raises:
        ValueError: one is not set and has no default, or the text has a `${` that is not closed or names nothing.
    """

    def value(match: re.Match[str]) -> str:
        escaped, variable, default, rest, closed = match.groups()
        if escaped:
            return match.group()[1:]
        if variable is None or rest or not closed:
            raise ValueError(
                f"{match.group()!r} is no variable; write ${{NAME}} or ${{NAME:-default}}, and $${{ for a plain one"
            )
        found = environment.get(variable) or default
        if found is None and variable not in environment:
            raise ValueError(f"the environment variable {variable} is not set; set it, or write ${{{variable}:-default}}")
        return found or ""

    return _VARIABLE.sub(value, text)


def _place(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _told(error: yaml.MarkedYAMLError) -> str:
    """The parser's message, with what to do about the usual mistakes."""
    problem = str(error.problem)
    if problem == _YAML_TABS:
        return "there is a tab; indent with blanks"
    if problem.startswith("could not determine a constructor for the tag"):
        return f"{problem}; tags are not taken: say it once with an anchor (&name) and again with an alias (*name)"
    return problem
