"""Environment variables in the values of a tuning file.

`${NAME}` is replaced by the variable NAME, `${NAME:-default}` by the default if NAME is unset or empty, `$${` by `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autofit.workload.environment import Source

_VARIABLE = re.compile(r"\$(\$?)\{(?:(\w+)(?::-([^}]*))?)?([^}]*)(\}?)")


def expand(written: str, environment: Mapping[str, str]) -> tuple[str, Source]:
    """Replace the environment variables in a text; return it with its source.

    Raises:
        ValueError: a variable is not set and has no default, or `${` is not closed or names no variable.
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
                f"{match.group()!r} is not a variable; write ${{NAME}} or ${{NAME:-default}}, or $${{ for a literal ${{"
            )
        if name not in environment and default is None:
            raise ValueError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        texts.append(environment.get(name) or default or "")
        codes.append(f"os.environ[{name!r}]" if default is None else f"(os.environ.get({name!r}) or {default!r})")
        if environment.get(name):
            variables.append((name, environment[name]))
    add(written[end:])
    return "".join(texts), Source(written, " + ".join(codes), tuple(variables))
