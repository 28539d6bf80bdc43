"""The identity of a script: its files without what a tune changes in them, so that an answer is
found again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.places import Edits, read_text
from autofit.workload.own_modules import OwnModules
from autofit.workload.script import Script
from autofit.workload.script.marks import Marker, is_knob_name

# attributes and methods that the lines added for a config set and call
_ATTRIBUTES = (STEPS_PER_EXECUTION, "workers", "max_queue_size", "use_multiprocessing")
_VALUE = "_"  # stands for the value of a knob


def key_of(script: Script) -> str:
    """Return the key of a script whose values of knobs are left out, whatever sets one."""
    trees = (ast.dump(_Cutter(file, ast.parse(text)).cut(text)) for file, text in _files(script))
    return _hash([*trees, *_without_knobs(script.arguments), script.module, str(script.fit)])


def digest_of(script: Script, edits: Edits | None = None) -> str:
    """Return a digest of a script with its arguments, after edits; comments and layout do not
    count.
    """
    edits = Edits({}, {}) if edits is None else edits
    trees = (ast.dump(ast.parse(edits.apply(file, text))) for file, text in _files(script))
    return _hash([*trees, *_settled([*script.arguments, *edits.options])])


def digest_without(script: Script, edits: Edits) -> str:
    """Return a digest of a script in which the places of the knobs that are tuned have no value."""
    return digest_of(script, Edits(edits.places, dict.fromkeys(edits.places, _VALUE)))


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
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _without_knobs(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a command line without the options that are named like knobs."""
    kept = list[str]()
    is_value = False
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        if is_value and not argument.startswith("-"):
            is_value = False
            continue
        is_value = is_knob_name(name) and not equals
        if not is_knob_name(name):
            kept.append(argument)
    return kept


def _settled(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which the last of an option that is named like a knob counts."""
    knobs = [argument for argument in arguments if argument not in _without_knobs(arguments)]
    pairs = dict[str, str]()
    name = ""
    for part in knobs:
        if part.startswith("-") or "=" in part:
            name, _, value = part.partition("=")
            pairs[name] = value
        else:
            pairs[name] = part
    return [*_without_knobs(arguments), *(f"{name}={value}" for name, value in pairs.items())]


class _Cutter(Marker):
    """Takes the values of knobs out of a tree, and the lines and arguments that answers add."""

    def cut(self, text: str) -> ast.AST:
        tree: ast.AST = self.visit(ast.parse(text))
        return tree

    def _wrapped(self, node: Any, name: Any) -> Any:
        wrapped = super()._wrapped(node, name)
        return node if wrapped is node else ast.Constant(_VALUE)

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802  # the name is of `ast`
        target = node.targets[0]
        is_added = isinstance(target, ast.Attribute) and target.attr in _ATTRIBUTES
        if is_added and isinstance(node.value, ast.Constant):
            return None
        return super().visit_Assign(node)

    def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802  # the name is of `ast`
        if getattr(node.func, "attr", "") == "prefetch" and isinstance(node.func, ast.Attribute):
            return self.visit(node.func.value)
        super().visit_Call(node)
        node.keywords = [
            keyword
            for keyword in node.keywords
            if not (isinstance(keyword.value, ast.Constant) and keyword.value.value == _VALUE)
        ]
        return node
