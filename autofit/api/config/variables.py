"""Environment variables in the values of a tuning file.

`${NAME}` is the variable NAME, `${NAME:-default}` has a default for one that is unset or empty, and `$${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autofit.workload.environment import Source

_VARIABLE = re.compile(r"\$(\$?)\{(?:(\w+)(?::-([^}]*))?)?([^}]*)(\}?)")


def expand(written: str, environment: Mapping[str, str]) -> tuple[str, Source]:
    """Replace the environment variables in a text; returns it with its source.

    Raises:
        ValueError: one is not set and has no default, or a `${` is not closed or names no variable.
    """
    texts, codes, variables, end = list[str](), list[str](), list[tuple[str, str]](), 0

    def add(literal: str) -> None:
        texts.append(literal)
        codes.extend([repr(literal)] if literal else [])

    for match in _VARIABLE.finditer(written):
        add(written[end : match.start()])
        end = match.end()
        escaped, name, default, rest, closed = match.groups()
        if escaped:
            add(match.group()[1:])
            continue
        if name is None or rest or not closed:
            raise ValueError(
                f"{match.group()!r} is no variable; write ${{NAME}} or ${{NAME:-default}}, and $${{ for a plain one"
            )
        if name not in environment and default is None:
            raise ValueError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        texts.append(environment.get(name) or default or "")
        codes.append(f"os.environ[{name!r}]" if default is None else f"(os.environ.get({name!r}) or {default!r})")
        if environment.get(name):
            variables.append((name, environment[name]))
    add(written[end:])
    return "".join(texts), Source(written, " + ".join(codes), tuple(variables))
