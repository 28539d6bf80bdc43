"""Read YAML files into the arguments of `tune`, with errors that name file, line, column and key; and their JSON Schema."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from autofit.api.config.document import Document, read
from autofit.api.config.matrix import MatrixError, apply, paths, unfold
from autofit.errors import ConfigError, UsageError
from autofit.tuning.settings import TuneSettings
from autofit.workload import fit_options
from autofit.workload.reference import Reference
from autofit.workload.workload import ARGUMENTS
from autofit.workload.written import expanded

MATRIX = "matrix"
USER_KEY_PREFIX = "x-"
HOST_LABELS = "host_labels"
_REFERENCES: dict[str, Any] = {"build_model": str, "data": str, "validation": str | None, "fit_kwargs": dict[str, Any]}
_WORKLOAD: dict[str, Any] = {
    name: (_REFERENCES[name], Field(field.default, description=field.description))
    if name in _REFERENCES
    else (field.annotation, field)
    for name, field in ARGUMENTS.items()
}
TuneFile = create_model(
    "TuneFile",
    __base__=TuneSettings,
    __doc__="The keys of a tuning file: the arguments of `tune`, with references in place of functions.",
    **_WORKLOAD,
    host_labels=(dict[str, str], Field({}, description="Labels that a host must have in a sweep on a Ray cluster.")),
)

# shown in results, so their variables stay as written; a trial's process gets the values
_PASSED_ON = ("model_kwargs", "data_kwargs", "validation_kwargs")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a tuning file into the arguments of `tune`; functions become references relative to the file.

    Raises:
        ConfigError: the file is invalid; the message names file, line, column and key.

    Example:
        >>> tuned = autofit.tune(**{**autofit.load("tune.yaml"), "space": {"batch_size": [32, 256]}, "progress": False})
        >>> tuned.headroom["host"] > 0
        True
    """
    document = read(path)
    raw = _mapping(document)
    if MATRIX in raw:
        raise document.error((MATRIX,), f"this file describes a sweep; run: autofit sweep {document.name}")
    if raw.get(HOST_LABELS):
        raise document.error((HOST_LABELS,), "applies only to sweeps on a cluster, but a tune runs here; remove it")
    return _arguments(document, raw)


def load_sweep(path: str | os.PathLike[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Read a file with a `matrix`; return a pair for each cell: its values by axis, and its arguments of `tune`."""
    document = read(path)
    raw = dict(_mapping(document))
    if MATRIX not in raw:
        raise document.error((), "has no `matrix:` with the values to vary; for a single tune, run autofit tune")
    matrix = raw.pop(MATRIX)
    try:
        cells = [(values, apply(values, raw)) for values in unfold(matrix)]
    except MatrixError as error:
        raise document.error((MATRIX, *error.keys), str(error)) from None
    return [(values, _arguments(document, changed, values)) for values, changed in cells]


def load_any(path: str | os.PathLike[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Read a file with a `matrix` as `load_sweep` does, and any other file as one cell without values."""
    return load_sweep(path) if MATRIX in _mapping(read(path)) else [({}, load(path))]


@contextlib.contextmanager
def placing_errors(path: str | os.PathLike[str], overrides: Collection[str] = ()) -> Iterator[None]:
    """Turn a UsageError about a key of the file into a ConfigError that names its place, unless `overrides` has the key."""
    try:
        yield
    except UsageError as error:
        keys = (error.key or "").split(".")
        if isinstance(error, ConfigError) or keys[0] not in TuneFile.model_fields or keys[0] in overrides:
            raise
        raise read(path).error(tuple(keys), error.problem, error.key) from None


def _mapping(document: Document) -> dict[str, Any]:
    if not isinstance(document.value, dict):
        raise document.error((), "must be a mapping of keys to values, starting with build_model: and data:")
    return {key: value for key, value in document.value.items() if not str(key).startswith(USER_KEY_PREFIX)}


def _arguments(document: Document, raw: dict[str, Any], cell: Mapping[str, Any] | None = None) -> dict[str, Any]:
    raw = {key: value if key in _PASSED_ON else expanded(value) for key, value in raw.items()}
    folder = str(Path(document.name).resolve().parent)
    try:
        file = TuneFile.model_validate(raw)
        arguments = {key: getattr(file, key) for key in TuneFile.model_fields}
        for key in ("build_model", "data", "validation"):
            if arguments[key] is not None:
                arguments[key] = _reference(key, arguments[key], folder)
        fit_kwargs = dict(arguments["fit_kwargs"])
        for name in fit_options.MADE:
            if isinstance(fit_kwargs.get(name), str):
                fit_kwargs[name] = _reference(f"fit_kwargs.{name}", fit_kwargs[name], folder)
        arguments["fit_kwargs"] = fit_options.validated(fit_kwargs)
    except UsageError as caught:
        key = caught.key or ""
        for axis in cell or ():  # if the value comes from an axis, the error is there
            if any(f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.") for path in paths(axis)):
                raise document.error((MATRIX, axis), caught.problem, f"{MATRIX}.{axis}") from None
        raise document.error(tuple(key.split(".")), caught.problem, key) from None
    if not arguments[HOST_LABELS]:
        del arguments[HOST_LABELS]
    given = {"space": file.space.values(), "baseline": file.baseline.values()}
    return {**arguments, **given, "options": file.options.model_dump(exclude_unset=True)}


def overridden(arguments: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a file with others in their place; of the options, those that are given."""
    options = {**arguments["options"], **given.get("options", {})}
    return {**arguments, **given, "options": options}


def _reference(key: str, text: str, folder: str) -> Reference:
    reference = Reference(text, folder)
    try:
        reference.validate()
    except UsageError as error:
        raise UsageError(error.problem, key=key) from None
    return reference


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a tuning file."""
    schema = TuneFile.model_json_schema()
    schema["properties"][MATRIX] = {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
        "description": "Values to combine in a sweep: a list for each dotted argument.",
    }
    schema["patternProperties"] = {
        f"^{USER_KEY_PREFIX}": {"description": "Your own keys, for anchors; autofit ignores them."}
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "autofit tuning file"}
