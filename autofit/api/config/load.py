"""Read YAML files into the arguments of `tune`, with errors that name file, line, column and key; and their JSON Schema."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, create_model

from autofit.api.config.document import read
from autofit.api.config.matrix import apply, paths, unfold
from autofit.api.signature import texts_of
from autofit.api.tune import tune
from autofit.errors import ConfigError, UsageError
from autofit.tuning.settings import TuneSettings
from autofit.workload import fit_options
from autofit.workload.arguments import FUNCTION, Keywords, collected, collecting, raise_joined, written_as
from autofit.workload.reference import Reference, expanded
from autofit.workload.workload import ARGUMENTS

MATRIX = "matrix"
USER_KEY_PREFIX = "x-"
HOST_LABELS = "host_labels"
Cells = list[tuple[dict[str, Any], dict[str, Any]]]  # the values of each by axis, and its arguments of `tune`


@collected
def _reference(text: str, info: ValidationInfo) -> Reference:
    """Return the function that a file names, relative to its folder, which is the context of the validation."""
    reference = Reference(text, info.context or ".")
    reference.validate()
    return reference


@collected
def _fit_kwargs(given: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
    options, errors = dict(given), list[UsageError]()
    for name in (name for name in fit_options.MADE if isinstance(given.get(name), str)):
        reference = Reference(options.pop(name), info.context or ".")
        with collecting(errors, f"fit_kwargs.{name}"):
            reference.validate()
            options[name] = reference
    with collecting(errors):
        options = fit_options.validated(options)
    raise_joined(errors)
    return options


_Function = Annotated[str, written_as(FUNCTION), AfterValidator(_reference)]
_IN_FILES: dict[str, Any] = {
    "build_model": (_Function, ...),
    "data": (_Function, ...),
    "validation": (_Function | None, None),
    "fit_kwargs": (Annotated[Keywords, AfterValidator(_fit_kwargs)], {}),
}
TuneFile = create_model(
    "TuneFile",
    __base__=TuneSettings,
    __doc__="The keys of a tuning file: the arguments of `tune`, with references in place of functions.",
    **{name: _IN_FILES.get(name, (field.annotation, field)) for name, field in ARGUMENTS.items()},
    host_labels=(dict[str, str], Field({}, description="Labels that a host must have in a sweep on a Ray cluster.")),
)

# shown in results, so their variables stay as written; a trial's process gets the values
_PASSED_ON = ("model_kwargs", "data_kwargs", "validation_kwargs")


def load(path: str | os.PathLike[str], overrides: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Read a tuning file into the arguments of `tune`; functions become references relative to the file.

    `overrides` are arguments that take precedence over the file; of the options, those that are given.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key of each error.

    Example:
        >>> tuned = autofit.tune(**autofit.load("tune.yaml", {"space": {"batch_size": [32, 256]}}), progress=False)
        >>> tuned.headroom["host"] > 0
        True
    """
    return load_cells(path, overrides, sweep=False)[0][1]


def load_cells(path: str | os.PathLike[str], overrides: Mapping[str, Any] = {}, *, sweep: bool | None = None) -> Cells:
    """Read the cells of a file with a `matrix`, or any other file as one cell without values.

    `overrides` are those of `load`. `sweep` says whether there must be a matrix or must be none; None if either will do.
    """
    document, errors, cells = read(path), list[UsageError](), Cells()
    with document.placing():
        if not isinstance(document.value, dict):
            raise UsageError("must be a mapping of keys to values, starting with build_model: and data:")
        raw = {key: value for key, value in document.value.items() if not str(key).startswith(USER_KEY_PREFIX)}
        has_matrix = MATRIX in raw
        if has_matrix and sweep is False:
            raise UsageError(f"this file describes a sweep; run: autofit sweep {document.name}", key=MATRIX)
        if sweep and not has_matrix:
            raise UsageError("has no `matrix:` with the values to vary; for a single tune, run autofit tune")
        if raw.get(HOST_LABELS) and not has_matrix:
            raise UsageError("applies only to sweeps on a cluster, but a tune runs here; remove it", key=HOST_LABELS)
        for values in unfold(raw.pop(MATRIX)) if has_matrix else [{}]:
            found: list[UsageError] = []
            with collecting(found):
                arguments = _arguments(apply(values, raw), str(Path(path).resolve().parent))
                options = {**arguments["options"], **overrides.get("options", {})}
                cells.append((values, {**arguments, **overrides, "options": options}))
            errors += [UsageError(error.problem, key=_axis_of(error.key, values)) for error in found]
        raise_joined(errors)
    return cells


def _axis_of(key: str | None, cell: Mapping[str, Any]) -> str | None:
    """Return the key of the axis that gives an argument or a part of it; or else the key of the argument."""
    for axis in cell:
        if any(f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.") for path in paths(axis)):
            return f"{MATRIX}.{axis}"
    return key


@contextlib.contextmanager
def placing_errors(path: str | os.PathLike[str], overrides: Collection[str] = ()) -> Iterator[None]:
    """Turn a UsageError about a key of the file into a ConfigError that names its place, unless `overrides` has the key."""
    try:
        yield
    except UsageError as error:
        key = (error.key or "").partition(".")[0]
        if isinstance(error, ConfigError) or key not in TuneFile.model_fields or key in overrides:
            raise
        with read(path).placing():
            raise


def _arguments(raw: Mapping[str, Any], folder: str) -> dict[str, Any]:
    raw = {key: value if key in _PASSED_ON else expanded(value) for key, value in raw.items()}
    file = TuneFile.model_validate(raw, context=folder)
    arguments = {key: value for key in TuneFile.model_fields if (value := getattr(file, key)) or key != HOST_LABELS}
    given = {"space": file.space.values(), "baseline": file.baseline.values()}
    return {**arguments, **given, "options": file.options.model_dump(exclude_unset=True)}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a tuning file; its texts are those of the arguments of `tune`."""
    schema, texts = TuneFile.model_json_schema(), texts_of(tune)
    for properties in (schema["properties"], schema["$defs"]["Options"]["properties"]):
        for name in properties.keys() & texts.keys():
            properties[name]["description"] = texts[name]
    schema["properties"][MATRIX] = {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
        "description": "Values to combine in a sweep: a list for each dotted argument.",
    }
    schema["patternProperties"] = {
        f"^{USER_KEY_PREFIX}": {"description": "Your own keys, for anchors; autofit ignores them."}
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "autofit tuning file"}
