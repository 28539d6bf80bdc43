"""`autofit init`: write a commented YAML file for the functions of a Python file, which is parsed and not run."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
import yaml

from autofit.api.config import load
from autofit.api.tune import tune
from autofit.cli.common import reporting_errors, require_writable
from autofit.errors import UsageError
from autofit.records.knobs import KNOBS
from autofit.storage import result_files

_EVERYDAY = 10  # arguments of `tune`, the first ones
_MODEL_WORDS = ("model", "network")
_DATA_WORDS = ("data", "batch", "load", "generat")
_VALIDATION_WORDS = ("val", "test")
_DATA_CLASSES = ("PyDataset", "Sequence")
_KNOBS = {name for row in KNOBS.values() for name in row.parameters}
_EXAMPLES = {
    "build_model": "def build_model()",
    "data": "def make_data(batch_size)",
    "validation": "",
}
_HEAD = """\
# yaml-language-server: $schema=autofit.schema.json
# autofit schema > autofit.schema.json lets editors complete and check this file.
"""
_Node = ast.FunctionDef | ast.ClassDef


def init(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.py", help="Python file with the functions; it is not run."),
    ],
    output: Annotated[Path, typer.Option(help="YAML file to write.")] = Path("tune.yaml"),
) -> None:
    """Write a commented YAML file for the functions of FILE.py that look like a model and its data."""
    with reporting_errors():
        require_writable(output)
        if output.exists():
            raise UsageError(
                f"{output} exists and is not overwritten; name another file", key="--output"
            )
        chosen = _chosen(file)
        result_files.write(_commented(chosen, os.path.relpath(file, output.parent)), output)
        for key, node in chosen.items():
            typer.echo(f"{key}: {node.name} in line {node.lineno}")
        name = shlex.quote(str(output))
        typer.echo(
            f"written to {output}; complete it, then run: autofit check {name} && autofit tune {name}"
        )


def _chosen(file: Path) -> dict[str, _Node]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
        # the last two, mostly without a text, for code that is nested too deeply
        reason = str(error) or type(error).__name__
        raise UsageError(f"{file} cannot be read: {reason}") from None
    nodes = [node for node in tree.body if isinstance(node, _Node)]
    chosen = {}
    for key, example in _EXAMPLES.items():
        roles = [(role[1], node) for node in nodes if (role := _role(node))[0] == key]
        if roles:
            chosen[key] = max(roles, key=lambda role: role[0])[1]
        elif example:
            names = ", ".join(node.name for node in nodes) or "none"
            raise UsageError(
                f"no function of {file} looks like {key}, as {example} would (functions there: {names})"
            )
    return chosen


def _role(node: _Node) -> tuple[str, int]:
    """Return the key that a function is for, and how sure that is; empty if it looks like none."""
    name = node.name.lower()
    data = "validation" if any(word in name for word in _VALIDATION_WORDS) else "data"
    if isinstance(node, ast.ClassDef):
        is_data = any(ast.unparse(base).rpartition(".")[2] in _DATA_CLASSES for base in node.bases)
        return (data if is_data else "", 3)
    methods = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    if "fit" in methods:  # it trains
        return "", 0
    if "compile" in methods:
        return "build_model", 2
    is_named = any(word in name for word in _DATA_WORDS)
    if not _KNOBS.isdisjoint(one.arg for one in (*node.args.args, *node.args.kwonlyargs)):
        return data, 2 + is_named
    return (
        "build_model" if any(word in name for word in _MODEL_WORDS) else data if is_named else "",
        1,
    )


def _commented(chosen: Mapping[str, _Node], path: str) -> str:
    lines = [_HEAD]
    texts = load.texts()
    for key, node in chosen.items():
        lines.append(yaml.safe_dump({key: f"{path}:{node.name}"}, width=10_000).rstrip())
    for name, parameter in list(inspect.signature(tune).parameters.items())[:_EVERYDAY]:
        if name not in chosen:
            default = parameter.default
            lines += [
                "",
                *textwrap.wrap(
                    texts.get(name, ""), 80, initial_indent="# ", subsequent_indent="# "
                ),
            ]
            lines.append(
                f"# {name}: {default if isinstance(default, str) else json.dumps(default)}"
            )
    return "\n".join(lines) + "\n"
