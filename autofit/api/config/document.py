"""Read a YAML file into its values and their positions.

In a value, `${NAME}` stands for the environment variable NAME. `${NAME:-default}` stands for the
default if NAME is unset or empty, and `$${` for a literal `${`. The result is read as YAML again,
so that `batch_size: ${BATCH:-32}` is a number. Such a value becomes a `Written`, which keeps the
text of the file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import yaml

from autofit.errors import ConfigError, PlacedProblem, Problem
from autofit.workload.arguments import collecting
from autofit.workload.reference import Written, as_written

_VARIABLE = re.compile(r"\$(\$)?\{(?:(\w+)(?::-([^}]*))?\})?")
# what to do about a problem that the parser names, by a part of its text
_REMEDIES = {
    r"'\t'": "indent with spaces, not with a tab",
    "got '{'": "inside of {} or [], write ${NAME} in quotes",
    "another document": "write each tune in its own file",
    " byte": "save it as UTF-8",
    "the tag": (
        "tags are not supported: name a value with an anchor (&name) and repeat it with an alias "
        "(*name)"
    ),
    "mapping values": (
        "put a value that contains ': ' in quotes, and write a colon after the key before it"
    ),
    "'<scalar>'": "check the quotes and the indentation up to here",
}
# the same for what is not complete: its place is where it begins, because the parser notices it
# later
_INCOMPLETE = {
    "expected ':'": "write a colon and a space after this key",
    "unexpected end of stream": "close this quote",
    "expected ',' or": "close this bracket, or put a comma between its values",
}
# Far above what a tune needs. PyYAML reads some 20,000 values a second, and aliases within aliases
# multiply them: a short file could stand for more values than memory holds.
_MOST_BYTES = 256 * 1024
_MOST_VALUES = 20_000
_DEEPEST = 50


class Document(yaml.SafeLoader):
    """The values of a YAML file and their positions.

    And what is wrong with values, which are then None.
    """

    value: Any
    root: yaml.Node | None

    def __init__(self, raw: bytes, name: str) -> None:
        super().__init__(raw)
        self.name = name
        self.problems: list[PlacedProblem] = []
        self._depth = self._composed = 0
        # of each complete node, by its id: its values with its aliases expanded, and their depth
        self._extents = dict[int, tuple[int, int]]()

    @contextlib.contextmanager
    def placing(self) -> Iterator[list[Problem]]:
        """Collect problems in the block; then raise one ConfigError with the places of them all."""
        problems: list[Problem] = []
        with collecting(problems):
            yield problems
        # a value that could not be read is None, which is also what is wrong with the argument
        lines = {problem.line for problem in self.problems}
        placed = [self._place_of(problem) for problem in problems]
        found = [
            *self.problems,
            *(problem for problem in placed if problem.line not in lines),
        ]
        if found:
            # one for several cells of a matrix
            distinct = dict.fromkeys(found)
            raise ConfigError(
                sorted(
                    distinct,
                    key=lambda problem: (problem.line or 0, problem.column or 0),
                )
            )

    def _place_of(self, problem: Problem) -> PlacedProblem:
        """Place a problem at the deepest part of its key that the file has."""
        node = self.root
        place = self.root
        rest = problem.key or ""
        while isinstance(node, yaml.MappingNode):
            # the axes of a matrix have dots, too
            pair = next(
                (
                    pair
                    for pair in node.value
                    if f"{rest}.".startswith(f"{pair[0].value}.")
                ),
                None,
            )
            if pair is None:
                break
            place, node = pair
            rest = rest[len(pair[0].value) + 1 :]
        # what stands for an environment variable, which may be a secret, is shown as it is written
        return self._place(place, as_written(problem.text, self.value), problem.key)

    def _place(self, node: Any, text: str, key: str | None = None) -> PlacedProblem:
        mark = node.start_mark
        return PlacedProblem(text, key, self.name, mark.line + 1, mark.column + 1)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse what would take too long to expand, or would never end."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # untyped stub
        is_alias = isinstance(event, yaml.AliasEvent)
        self._depth += 1
        self._composed += 1
        self._require_small(event, self._composed, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if not is_alias:
            values = 1
            below = 0
            for part in [] if isinstance(node, yaml.ScalarNode) else node.value:
                # the values of a mapping are pairs
                for inner in part if isinstance(part, tuple) else [part]:
                    inner_values, inner_depth = self._extents[id(inner)]
                    values += inner_values
                    below = max(below, inner_depth)
            self._extents[id(node)] = values, 1 + below
        elif id(node) not in self._extents:
            problem = f"*{event.anchor} contains itself; remove this alias"
            raise ConfigError([self._place(event, problem)])
        self._require_small(event, *self._extents[id(node)])
        return node

    def _require_small(self, event: yaml.Event, values: int, depth: int) -> None:
        if values > _MOST_VALUES:
            problem = (
                f"more than {_MOST_VALUES} values, with aliases expanded; use fewer"
            )
            raise ConfigError([self._place(event, problem)])
        if depth > _DEEPEST:
            problem = f"more than {_DEEPEST} levels of nesting; use fewer"
            raise ConfigError([self._place(event, problem)])

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    problem = f"duplicate key, first in line {lines[key.value]}; remove one of them"
                    self.problems.append(self._place(key, problem, key.value))
                lines[key.value] = key.start_mark.line + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Expand environment variables.

        Note the line of a variable that is not set and of a value that YAML rejects.
        """
        text = node.value
        try:
            if not isinstance(node, yaml.ScalarNode) or "${" not in text:
                return super().construct_object(node, deep)
            text = _VARIABLE.sub(_value_of_variable, node.value)
            # only a plain text, without quotes, may stand for a number
            tag = node.tag
            if not node.style:
                # the stub of this method has no types
                resolve: Any = self.resolve
                tag = resolve(yaml.ScalarNode, text, (True, False))
            written = Written(node.value)
            written.variables = {
                _value_of_variable(one): one[0]
                for one in _VARIABLE.finditer(node.value)
                if one[2]
            }
            written.value = super().construct_object(
                yaml.ScalarNode(tag, text, node.start_mark), deep
            )
            return written
        except (ValueError, LookupError, AttributeError) as error:
            reason = f"it cannot be read as {node.tag.rpartition(':')[2]}"
            # a variable's value may be a secret, which Python's message would show
            if isinstance(error, ValueError) and text == node.value:
                reason = str(error)
            problem = f"{node.value or repr('')} is not allowed: {reason}"
            self.problems.append(self._place(node, problem))
            return None


def read(path: str | os.PathLike[str]) -> Document:
    """Read a YAML file; raise ConfigError if it is not one or is empty."""
    name = os.fspath(path)
    mark: yaml.Mark | None = None
    try:
        # one byte more shows that there are more; a device or a pipe may have no end
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            kib = _MOST_BYTES // 1024
            problem = f"is larger than {kib} KiB, so it is not a tuning file"
        else:
            document = Document(raw, name)
            if (root := document.get_single_node()) is not None:
                document.root = root
                document.value = document.construct_document(root)
                return document
            problem = (
                "is empty; it needs at least the keys build_model and data, or script"
            )
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except yaml.YAMLError as error:
        # an error of the encoding has no mark, and says where it is in its second line
        text = str(getattr(error, "problem", error)).partition("\n")[0]
        remedies = {**_REMEDIES, **_INCOMPLETE}
        part = next((part for part in remedies if part in text), "")
        mark = getattr(
            error, "context_mark" if part in _INCOMPLETE else "problem_mark", None
        )
        problem = f"is not YAML: {text}"
        if part:
            problem += f"; {remedies[part]}"
    if mark is None:
        raise ConfigError([PlacedProblem(problem, file=name)])
    placed = PlacedProblem(problem, None, name, mark.line + 1, mark.column + 1)
    raise ConfigError([placed])


def _value_of_variable(match: re.Match[str]) -> str:
    escape, name, default = match.groups()
    if escape:
        return match[0][1:]
    if name is None:
        raise ValueError("write ${NAME} or ${NAME:-default}, or $${ for a literal ${")
    value = os.environ.get(name, default)
    if value is None:
        raise ValueError(
            f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
        )
    return value or default or ""
