"""Mark what the script reads from its command line and from configuration files."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autofit.records.places import Place
from autofit.workload.script.marks import is_knob_name, marked, texts
from autofit.workload.script.run import AfterImport


def _is_read_by_user() -> bool:
    """Return whether the user's file calls what is marked, two frames above."""
    return sys._getframe(3).f_code.co_filename in texts


def _option(value: Any, name: str, option: str) -> Any:
    if not is_knob_name(name):
        return value
    return marked(value, Place(None, name=name, option=option))


def _of_argparse(parsed: Any, parser: Any, *_: Any) -> Any:
    namespace = parsed[0]
    # an option is set by what stands behind the script's own arguments
    for action in parser._actions:
        if action.option_strings and hasattr(namespace, action.dest):
            value = getattr(namespace, action.dest)
            option = max(action.option_strings, key=len)
            made = _option(value, action.dest, option)
            setattr(namespace, action.dest, made)
    return parsed


def _of_omegaconf(value: Any, config: Any, key: Any) -> Any:
    # OmegaConf takes nothing but plain ints where it merges its own values
    if not is_knob_name(key) or not _is_read_by_user():
        return value
    return _option(value, key, f"{config._get_full_key(key)}=")


def _of_file(tree: Any, stream: Any = None, *_: Any) -> Any:
    """Mark the ints of a configuration; the parser of YAML finds their places in its file."""
    name = getattr(stream, "name", None)
    # the file of a text is not known
    if isinstance(name, str) and _is_read_by_user():
        import yaml

        file = Path(name).absolute()
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        _mark_node(tree, yaml.compose(text), str(file), lines)
    return tree


def _mark_node(tree: Any, node: Any, file: str, lines: Sequence[str]) -> None:
    if not isinstance(tree, dict):
        return
    for key, value in node.value:
        name = key.value
        inner = tree.get(name)
        _mark_node(inner, value, file, lines)
        if is_knob_name(name):
            row = value.start_mark.line
            column = value.start_mark.column
            before = lines[row][:column]
            start = len(before.encode())
            end = start + value.end_mark.column - column
            span = (row + 1, start, row + 1, end)
            place = Place(None, file, span, name=name)
            tree[name] = marked(inner, place)


# modules, their functions that read, and what marks the values
_READERS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("argparse", "ArgumentParser.parse_known_args", _of_argparse),
    (
        "click.core",
        "Option.process_value",
        lambda value, option, *_: _option(
            value, option.name, max(option.opts, key=len)
        ),
    ),
    (
        "absl.flags._flagvalues",
        "FlagValues.__getattr__",
        lambda value, _, name: _option(value, name, f"--{name}"),
    ),
    ("omegaconf.dictconfig", "DictConfig.__getattr__", _of_omegaconf),
    ("omegaconf.dictconfig", "DictConfig.__getitem__", _of_omegaconf),
    ("yaml", "load", _of_file),
    ("yaml", "safe_load", _of_file),
    ("json", "load", _of_file),
)


def mark_options(imports: AfterImport) -> None:
    """Have the parsers that people use mark the values of options, and those of YAML and JSON
    files.
    """
    for module, function, marking in _READERS:
        imports.wrap(module, function, functools.partial(_marking, marking))


def _marking(marking: Callable[..., Any], original: Any) -> Any:
    """Return a function that returns what `marking` makes of a result and the arguments."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return marking(original(*args, **kwargs), *args)

    return call
