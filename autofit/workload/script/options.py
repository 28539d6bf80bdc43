"""Mark what the script reads from its command line and from configuration files."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autofit.records.places import Place
from autofit.workload.script.marks import is_knob_name, marked
from autofit.workload.script.run import AfterImport, texts


def mark_options(imports: AfterImport) -> None:
    """Have the parsers that people use mark the values of options, and those of YAML and JSON
    files.
    """
    imports.add("argparse", _argparse)
    imports.add("click.core", _click)
    imports.add("absl.flags._flagvalues", _absl)
    imports.add("omegaconf.dictconfig", _omegaconf)
    imports.add("yaml", _yaml)
    imports.add("json", _yaml)


def _option(value: Any, name: str, option: str) -> Any:
    return marked(value, Place(None, name=name, option=option)) if is_knob_name(name) else value


def _longest(names: Sequence[str]) -> str:
    return max(names, key=len)


def _argparse(module: Any) -> None:
    parser = module.ArgumentParser
    original = parser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace, rest = original(self, *args, **kwargs)
        # an option is set by what stands behind the script's own arguments
        for action in self._actions:
            if action.option_strings and hasattr(namespace, action.dest):
                value = getattr(namespace, action.dest)
                name = _longest(action.option_strings)
                setattr(namespace, action.dest, _option(value, action.dest, name))
        return namespace, rest

    parser.parse_known_args = parse_known_args


def _click(module: Any) -> None:
    option = module.Option
    original = option.process_value

    @functools.wraps(original)
    def process_value(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _option(original(self, *args, **kwargs), self.name, _longest(self.opts))

    option.process_value = process_value


def _absl(module: Any) -> None:
    values = module.FlagValues
    original = values.__getattr__

    def get(self: Any, name: str) -> Any:
        return _option(original(self, name), name, f"--{name}")

    values.__getattr__ = get


def _omegaconf(module: Any) -> None:
    config = module.DictConfig
    for method in ("__getattr__", "__getitem__"):
        _mark_keys(config, method)


def _mark_keys(config: Any, method: str) -> None:
    original = getattr(config, method)

    def get(self: Any, key: Any) -> Any:
        value = original(self, key)
        if not is_knob_name(key) or not _is_read_by_user():
            return value
        return _option(value, key, f"{self._get_full_key(key)}=")

    setattr(config, method, get)


def _is_read_by_user() -> bool:
    # OmegaConf takes nothing but plain ints where it merges its own values
    return sys._getframe(2).f_code.co_filename in texts


def _yaml(module: Any) -> None:
    for name in ("load", "loads", "safe_load"):
        if hasattr(module, name):
            setattr(module, name, _marking(getattr(module, name)))


def _marking(original: Any) -> Any:
    @functools.wraps(original)
    def load(stream: Any, *args: Any, **kwargs: Any) -> Any:
        tree = original(stream, *args, **kwargs)
        if _is_read_by_user():
            _mark_tree(tree, _file_of(stream))
        return tree

    return load


def _file_of(stream: Any) -> str:
    """Return the file of a stream; empty for a text, whose file is not known."""
    name = getattr(stream, "name", "")
    return str(Path(name).absolute()) if isinstance(name, str) and name else ""


def _mark_tree(tree: Any, file: str) -> None:
    """Mark the ints of a configuration, whose places are found in the file by the parser of YAML."""
    import yaml

    if not file or not isinstance(tree, dict):
        return
    text = Path(file).read_text(encoding="utf-8")
    _mark_node(tree, yaml.compose(text), file, text.splitlines())


def _mark_node(tree: dict[Any, Any], node: Any, file: str, lines: Sequence[str]) -> None:
    for key, value in getattr(node, "value", ()):
        name = key.value
        inner = tree.get(name)
        if isinstance(inner, dict):
            _mark_node(inner, value, file, lines)
        elif is_knob_name(name):
            start, end = value.start_mark, value.end_mark
            before = len(lines[start.line][: start.column].encode())
            span = (start.line + 1, before, start.line + 1, before + end.column - start.column)
            tree[name] = marked(inner, Place(None, file, span, name=name))
