"""The identity of a script: its files without what a tune changes in them, so that an answer is
found again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofit.records.places import Edits, Place, read_text
from autofit.workload.own_modules import OwnModules
from autofit.workload.script import Script
from autofit.workload.script.marks import Marker, is_knob_name

_VALUE = "_"  # stands for the value of a knob


def key_of(script: Script) -> str:
    """Return the key of a script whose values of knobs are left out, whatever sets one."""
    others, _ = _options(script.arguments)
    parts = [*others, script.module, str(script.fit)]
    for file, text in _files(script):
        tree = ast.parse(text)
        parts.append(ast.dump(_Cutter(file, tree).visit(tree)))
    return _hash(parts)


def digest_of(script: Script, edits: Edits | None = None) -> str:
    """Return a digest of a script with its arguments, after edits; comments and layout do not
    count.
    """
    edits = edits or Edits({}, {})
    others, knobs = _options([*script.arguments, *edits.options])
    parts = [*others, *map("=".join, knobs.items())]
    for file, text in _files(script):
        tree = ast.parse(edits.apply(file, text))
        parts.append(ast.dump(tree))
    return _hash(parts)


def digest_without(script: Script, places: Mapping[str, Place]) -> str:
    """Return a digest of a script in which the places of the knobs that are tuned have no value."""
    return digest_of(script, Edits(places, dict.fromkeys(places, _VALUE)))


def _files(script: Script) -> Iterator[tuple[str, str]]:
    """Yield the script and its own modules, with their texts."""
    main = script.path
    if main is None:
        return
    modules = OwnModules()
    modules.folders.append(str(main.parent))
    modules.add(main)
    for file in sorted(modules.digests):
        yield str(file), read_text(str(file))


def _hash(parts: Sequence[str]) -> str:
    text = json.dumps(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _options(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return arguments of a command line without the options that are named like knobs, and the
    last value of each of those.
    """
    others = list[str]()
    values = dict[str, str]()
    option = ""  # of a knob, whose value may follow
    for argument in arguments:
        name, _, value = argument.partition("=")
        if option and not argument.startswith("-"):
            values[option] = argument
            option = ""
        elif is_knob_name(name):
            values[name] = value
            option = "" if value else name
        else:
            others.append(argument)
            option = ""
    return others, values


class _Cutter(Marker):
    """Takes the values of knobs out of a tree, and the lines and arguments that answers add."""

    def visit(self, node: ast.AST) -> Any:
        match node:
            case ast.Call(ast.Attribute(dataset, "prefetch")):
                return self.visit(dataset)
            case ast.keyword(name) if is_knob_name(name):
                return None
            case ast.Assign([ast.Attribute(_, name)], ast.Constant()) if is_knob_name(
                name
            ):
                return None
        return super().visit(node)

    def wrap(self, node: ast.AST, name: str) -> ast.AST:
        return ast.Constant(_VALUE)
