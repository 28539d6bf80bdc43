"""Read YAML files into the arguments of `tune`, with errors that name file, line, column and key.

And their JSON Schema.

A file with a matrix describes a sweep:

    matrix:
      model_kwargs.width: [8, 16, 32]         # a dotted argument of `tune` and its values
      model_kwargs.pixels, data_kwargs.pixels: [64, 128]      # several arguments that take the same
      value
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model

from autofit.api.config.document import read
from autofit.api.session import NAMES, parse
from autofit.api.tune import tune
from autofit.api.tune_script import tune_script
from autofit.cluster.cells import CellRequest
from autofit.errors import ConfigError, Problem, UsageError
from autofit.tuning.settings import TuneSettings
from autofit.workload.arguments import FUNCTION, collecting
from autofit.workload.fit_options import CALLBACKS
from autofit.workload.reference import Reference, expanded
from autofit.workload.script import ARGUMENTS as SCRIPT
from autofit.workload.script import make_script
from autofit.workload.workload import ARGUMENTS

MATRIX = "matrix"
HOST_LABELS = "host_labels"
USER_KEY_PREFIX = "x-"
_FUNCTIONS = dict.fromkeys(("build_model", "data", "validation"), (str | None, None))
# shown in results, so their variables stay as written; a trial's process gets the values
_PASSED_ON = ("model_kwargs", "data_kwargs", "validation_kwargs", "arguments")
# the values of each by axis, and its arguments of `tune`
Cells = list[tuple[dict[str, Any], dict[str, Any]]]


def load(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Read a tuning file into the arguments of `tune`.

    Functions become references relative to the file.

    `overrides` are arguments that take precedence over the file; of the options, those that are
    given.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key of each
            error.

    Example:
        >>> arguments = autofit.load("tune.yaml", {"space": {"batch_size": [32, 256]}})
        >>> tuned = autofit.tune(**arguments, progress=False)
        >>> tuned.headroom["host"] > 0
        True
    """
    return load_cells(path, overrides, sweep=False)[0][1]


def load_cells(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] = {},
    *,
    sweep: bool | None = None,
) -> Cells:
    """Read the cells of a file with a `matrix`, or any other file as one cell without values.

    `overrides` are those of `load`. `sweep` says whether there must be a matrix or must be none;
    None if either will do.
    """
    document = read(path)
    cells = Cells()
    with document.placing() as problems:
        if not isinstance(document.value, dict):
            raise UsageError(
                "must be a mapping of keys to values: build_model: and data:, or script:"
            )
        raw = {
            str(key): value
            for key, value in document.value.items()
            if not str(key).startswith(USER_KEY_PREFIX)
        }
        if "call_source" in raw:
            raise UsageError(
                "is a saved result, not a tuning file; read it with autofit.Result.load or "
                "autofit report"
            )
        has_matrix = MATRIX in raw
        if has_matrix and sweep is False:
            raise UsageError(
                f"this file describes a sweep; run: autofit sweep {document.name}",
                key=MATRIX,
            )
        if sweep and not has_matrix:
            raise UsageError(
                "has no `matrix:` with the values to vary; for a single tune, run autofit tune"
            )
        if HOST_LABELS in raw and not has_matrix:
            raise UsageError(
                "is for sweeps on a cluster, but a tune runs here; remove it",
                key=HOST_LABELS,
            )
        for values in unfold(raw.pop(MATRIX)) if has_matrix else [{}]:
            found: list[Problem] = []
            arguments: dict[str, Any] = {}
            with collecting(found):
                arguments = _arguments(
                    apply(values, raw), str(Path(path).resolve().parent), found
                )
            problems += [_on_axis(problem, values) for problem in found]
            if not found:
                options = {
                    **(arguments.get("options") or {}),
                    **overrides.get("options", {}),
                }
                cells.append((values, {**arguments, **overrides, "options": options}))
    return cells


def _arguments(
    raw: Mapping[str, Any], folder: str, problems: list[Problem]
) -> dict[str, Any]:
    """Replace the names of functions by references; add all that is wrong to `problems`."""
    arguments = {}
    for key, value in raw.items():
        arguments[key] = value if key in _PASSED_ON else expanded(value)
    if "script" in arguments:
        of_script = {name: arguments.pop(name) for name in SCRIPT if name in arguments}
        with collecting(problems, "script"):
            arguments["script"] = make_script(**of_script, folder=folder)
    options = arguments.get("fit_kwargs")
    named = [
        (key, arguments, key)
        for key in _FUNCTIONS
        if key in arguments and (arguments[key] or key != "validation")
    ]
    if isinstance(options, dict) and isinstance(options.get(CALLBACKS), str):
        named.append((f"fit_kwargs.{CALLBACKS}", options, CALLBACKS))
    for key, part, name in named:
        text = part[name]
        part[name] = Reference(str(part[name]), folder)
        with collecting(problems, key):
            if not isinstance(text, str):
                raise UsageError(f"{text!r} is not allowed: {FUNCTION}")
            part[name].validate()
    with collecting(problems):
        cell_request({}, arguments)
    return arguments


def cell_request(
    values: Mapping[str, Any], arguments: Mapping[str, Any]
) -> CellRequest:
    """Return the request of a cell with these arguments of `tune` and, perhaps, `host_labels`."""
    of_tune = dict(arguments)
    labels = of_tune.pop(HOST_LABELS, None) or {}
    if not isinstance(labels, Mapping) or not all(
        isinstance(part, str) for pair in labels.items() for part in pair
    ):
        raise UsageError(
            f"{labels!r} is not allowed; map labels to values, as in {{'region': 'eu'}}",
            key=HOST_LABELS,
        )
    workload, settings = parse(of_tune)
    return CellRequest(values, workload, settings, labels)


def _paths(axis: str) -> tuple[str, ...]:
    """Return the dotted arguments that an axis sets."""
    return tuple(path.strip() for path in axis.split(","))


def _on_axis(problem: Problem, cell: Mapping[str, Any]) -> Problem:
    """Give a problem the key of the axis that sets its argument or a part of it, if one does."""
    argument = f"{problem.key}."
    for axis in cell:
        for path in _paths(axis):
            if argument.startswith(f"{path}.") or path.startswith(argument):
                return replace(problem, key=f"{MATRIX}.{axis}")
    return problem


def unfold(matrix: Any) -> list[dict[str, Any]]:
    """Return the cells of a matrix in order, each as its values by axis: the last axis varies
    fastest.
    """
    if not isinstance(matrix, Mapping) or not matrix:
        raise UsageError(
            "must map arguments to lists of values, such as model_kwargs.width: [8, 16, 32]",
            key=MATRIX,
        )
    for axis, values in matrix.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UsageError(
                f"{values!r} is not allowed; write a list of values, such as [8, 16, 32]",
                key=f"{MATRIX}.{axis}",
            )
    axes = [str(axis) for axis in matrix]
    combinations = itertools.product(*matrix.values())
    return [dict(zip(axes, values, strict=True)) for values in combinations]


def apply(values: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested arguments with the values of a cell."""
    changed = dict(arguments)
    for axis, value in values.items():
        for path in _paths(axis):
            names = path.split(".")
            inner = changed
            for name, below in itertools.pairwise(names):
                part = inner.get(name) or {}
                if not isinstance(part, Mapping):
                    raise UsageError(
                        f"{name} is {part!r}, so {below} cannot be set in it; make {name} a "
                        "mapping",
                        key=f"{MATRIX}.{axis}",
                    )
                inner[name] = dict(part)
                inner = inner[name]
            inner[names[-1]] = value
    return changed


@contextlib.contextmanager
def placing_errors(
    path: str | os.PathLike[str], overrides: Collection[str] = ()
) -> Iterator[None]:
    """Turn a UsageError about an argument into a ConfigError that names its place in the file,
    unless it is overridden.
    """
    try:
        yield
    except UsageError as error:
        key = (error.key or "").partition(".")[0]
        if isinstance(error, ConfigError) or key not in NAMES or key in overrides:
            raise
        with read(path).placing() as problems:
            problems.extend(error.problems)


def texts() -> dict[str, str]:
    """Return the text of each argument of `tune`, and of each option, from its docstring.

    {} under `python -OO`.
    """
    docstring = "\n".join(
        inspect.getdoc(function) or "" for function in (tune_script, tune)
    )
    sections = re.findall(
        r"^(?:Args|Other Parameters|Options):\n((?: +.*\n|\n)+)",
        docstring,
        re.MULTILINE,
    )
    entries = re.findall(
        r"^ {4}(\w+): (.*(?:\n {8}.*)*)", "".join(sections), re.MULTILINE
    )
    found = {}
    for name, text in entries:
        line = " ".join(text.split())
        found[name] = line[0].upper() + line[1:]
    return found


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a tuning file.

    Its texts are those of the arguments of `tune`.
    """
    labels = "Labels that a host must have in a sweep on a Ray cluster."
    matrix = "Values to combine in a sweep: a list for each dotted argument."
    fields: dict[str, Any] = {
        **{name: (field.annotation, field) for name, field in ARGUMENTS.items()},
        **_FUNCTIONS,
        "script": (str | None, None),
        "arguments": (list[str | int | float], Field(default=[])),
        "places": (dict[str, str], Field(default={})),
        "fit": (int, 0),
        "writes": (bool, False),
        HOST_LABELS: (dict[str, str], Field({}, description=labels)),
        MATRIX: (
            dict[str, Annotated[list[Any], Field(min_length=1)]],
            Field(default_factory=dict, description=matrix),
        ),
    }
    model: Any = create_model("TuneFile", __base__=TuneSettings, **fields)
    written = model.model_json_schema()
    described = texts()
    for properties in (
        written["properties"],
        written["$defs"]["Options"]["properties"],
    ):
        for name in properties.keys() & described.keys():
            properties[name]["description"] = described[name]
    own = "Your own keys, for anchors; autofit ignores them."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **written,
        "anyOf": [{"required": ["build_model", "data"]}, {"required": ["script"]}],
        "patternProperties": {f"^{USER_KEY_PREFIX}": {"description": own}},
        "title": "autofit tuning file",
    }
