"""Writes the arguments of `tune` where people read them: signatures, docstrings, calls, and `configs/README.md`.

To change an argument, edit its field in `autofit/tuning/settings.py` or `autofit/workload/workload.py`, then run:

    python -m tests.arguments
"""

import json
import re
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from autofit.tuning.settings import Options, TuneSettings
from autofit.workload.workload import ARGUMENTS

ROOT = Path(__file__).parents[1]
WIDTH = 124
POSITIONAL = ("build_model", "data")
EVERYDAY = (
    "validation",
    "fit_kwargs",
    "batch_size",
    "space",
    "baseline",
    "device",
    "device_memory",
    "host_memory",
    "max_trials",
    "max_seconds",
)
"""What most users need; these come first."""

FIELDS = {**ARGUMENTS, **TuneSettings.model_fields}
ORDER = (*EVERYDAY, *(name for name in FIELDS if name not in (*EVERYDAY, *POSITIONAL)))
BUILT = ("model_kwargs", "data_kwargs", "fit_kwargs", "dtype_policy", "jit_compile", "backend")
PLACED = ("device", "device_memory", "host_memory", "options")
FUNCTIONS = {
    "tune": ORDER,
    "measure": (*BUILT, "call", *PLACED, "distribution"),
    "estimate": (*BUILT, *PLACED, "baseline"),
}
"""The functions that take these arguments, and which of them."""


def _as_yaml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return value.strip() if isinstance(value, str) else format(value, "g")


def type_text(annotation) -> str:
    """A type as a signature shows it: what the user passes, without the constraints."""
    if typing.get_origin(annotation) is typing.Annotated:
        return type_text(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_text(part) for part in typing.get_args(annotation)))
    if typing.get_origin(annotation) is typing.Literal:
        return f"Literal[{', '.join(json.dumps(value) for value in typing.get_args(annotation))}]"
    if typing.get_origin(annotation) is Sequence:
        return f"Sequence[{type_text(typing.get_args(annotation)[0])}]"
    if is_mapping(annotation):
        return "Mapping[str, Any]"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def is_mapping(annotation) -> bool:
    """Whether the user passes a mapping."""
    if typing.get_origin(annotation) is typing.Annotated:
        return is_mapping(typing.get_args(annotation)[0])
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and (issubclass(origin, BaseModel) or issubclass(origin, typing.Mapping))


def default_text(name) -> str:
    """The default of an argument as code."""
    default = FIELDS[name].default
    if is_mapping(FIELDS[name].annotation):
        return "{}"
    return json.dumps(default) if isinstance(default, str) else repr(default)


def signature(names) -> str:
    """The parameters, a line each."""
    return "".join(f"    {name}: {type_text(FIELDS[name].annotation)} = {default_text(name)},\n" for name in names)


def documentation(fields) -> str:
    """The entries of a docstring's "Args:"."""
    wrapped = textwrap.TextWrapper(WIDTH, initial_indent=8 * " ", subsequent_indent=12 * " ", break_on_hyphens=False)
    return "".join(f"{wrapped.fill(f'{name}: {uncapitalised(field.description)}')}\n" for name, field in fields.items())


def uncapitalised(text) -> str:
    """A sentence as it follows a colon; names such as Keras keep their capital."""
    first, _, rest = text.partition(" ")
    return text if first != first.capitalize() or first in ("Keras", "Ray") else f"{first.lower()} {rest}"


def written(source, function) -> str:
    """A module's source with a function's parameters and documentation written from the models."""
    names = FUNCTIONS[function]
    own = "|".join(
        (*POSITIONAL, *((*FIELDS, *Options.model_fields) if function == "tune" else names))
    )  # `estimate` has a batch_size of its own
    start = source.index(f"def {function}(\n")
    end = (re.compile(r"^(?:def|class) |\Z", re.MULTILINE).search(source, start + 1) or sys.exit(function)).start()
    before, text, after = source[:start], source[start:end], source[end:]
    head, star, body = text.partition("    *,\n")
    parameters, arrow, body = body.partition(") ->")
    kept = "".join(line for line in parameters.splitlines(keepends=True) if not re.match(rf"    (?:{own}): ", line))
    if function == "tune":
        intro, title, rest = body.partition("    Args:\n")
        entries, gap, rest = rest.replace("\n\n    Options:\n", "\n").partition("\n\n    Returns:")
        others = re.sub(rf"^        (?:{own}): .*\n(?: {{12}}.*\n)*", "", f"{entries}\n", flags=re.MULTILINE)
        arguments = documentation({name: FIELDS[name] for name in (*POSITIONAL, *names)})
        options = documentation(Options.model_fields)
        body = f"{intro}{title}{arguments}{others.strip(chr(10))}\n\n    Options:\n{options.rstrip()}{gap}{rest}"
    return formatted(f"{before}{head}{star}{signature(names)}{kept}{arrow}{body}{after}")


def formatted(source) -> str:
    """Source in the project's format."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(ROOT / "autofit" / "x.py"), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def table(fields) -> str:
    """Rows of a table: name, default, and the first sentence of the text."""
    rows = []
    for name, field in fields.items():
        default = field.default
        empty = default is None or is_mapping(field.annotation)
        shown = "" if empty else f"`{_as_yaml(default)}`"
        first = re.split(r"(?<=[.])\s+(?=[A-Z`])", field.description, maxsplit=1)[0]
        rows.append(f"| `{name}` | {shown} | {first.replace('|', chr(92) + '|')} |\n")
    return "".join(rows)


def documented(source) -> str:
    """The page with its tables of arguments written from the models."""
    everyday, other = ({name: FIELDS[name] for name in ORDER if (name in EVERYDAY) is part} for part in (True, False))
    for title, fields in (("everyday arguments", everyday), ("other arguments", other), ("options", Options.model_fields)):
        head = f"<!-- {title} -->\n"
        start = source.index(head) + len(head)
        body = f"| {title.split()[-1].rstrip('s')} | default | |\n| --- | --- | --- |\n{table(fields)}"
        source = source[:start] + body + source[source.index("<!-- end -->", start) :]
    return source


def files() -> dict:
    """Each file that shows arguments, with the text that it must have."""
    modules = {ROOT / "autofit" / "api" / f"{name}.py": name for name in FUNCTIONS}
    texts = {path: written(path.read_text(), name) for path, name in modules.items()}
    page = ROOT / "configs" / "README.md"
    return {**texts, page: documented(page.read_text())}


if __name__ == "__main__":
    for path, text in files().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
