"""YAML -> the same arguments that `tune()` takes; every error names file, line, column and key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autofit.api.config.document import Document, read
from autofit.api.config.matrix import INCLUDE, MatrixError, apply, paths, unfold
from autofit.errors import ConfigError, UsageError
from autofit.tuning.settings import TuneFile, _dotted, _problem
from autofit.workload.reference import Reference

_MATRIX = "matrix"
_OWN_KEYS = "x-"


def load(path: str | Path) -> dict[str, Any]:
    """Read a tuning file into the arguments of `tune()`; functions become references relative to the file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, says something that is not allowed, or describes a sweep.
    """
    document = read(path)
    told = _mapping(document)
    if _MATRIX in told:
        raise document.error((_MATRIX,), f"this file describes a sweep; run: autofit sweep {document.name}")
    return _arguments(document, told)


def load_sweep(path: str | Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Read a file with a `matrix` into (values by axis, arguments of `tune()`) for each cell; all are checked.

    Raises:
        ConfigError: as `load`; a cell says something that is not allowed; or there is no matrix.
    """
    document = read(path)
    told = dict(_mapping(document))
    if _MATRIX not in told:
        raise document.error((), "has no matrix:, which names what a sweep varies; for one tune run: autofit tune")
    matrix = told.pop(_MATRIX)
    try:
        cells = unfold(matrix)
        changed = [apply(values, told) for values in cells]
    except MatrixError as error:
        raise document.error((_MATRIX, *error.keys), str(error)) from None
    return [(values, _arguments(document, arguments, values)) for values, arguments in zip(cells, changed, strict=True)]


def load_any(path: str | Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Read a file with a `matrix` as `load_sweep` does, another as one cell without values.

    Raises:
        ConfigError: as `load` and `load_sweep`.
    """
    return load_sweep(path) if _MATRIX in _mapping(read(path)) else [({}, load(path))]


def placed(path: str | Path, error: UsageError, overrides: Collection[str] = ()) -> UsageError:
    """An error that names a key of a file, with the key's place in it; any other, or one of an override, as it is."""
    key, _, problem = str(error).partition(": ")
    name = key.partition(".")[0]
    if isinstance(error, ConfigError) or name not in TuneFile.model_fields or name in overrides:
        return error
    return read(path).error(tuple(key.split(".")), problem, key)


def _mapping(document: Document) -> dict[str, Any]:
    """The keys of a file, but for those that are the user's own."""
    if not isinstance(document.value, dict):
        raise document.error((), "must be a mapping of keys to values, beginning with build_model: and data:")
    return {key: value for key, value in document.value.items() if not str(key).startswith(_OWN_KEYS)}


def _arguments(document: Document, told: dict[str, Any], cell: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `tune()` that a file gives, or one cell of its matrix."""

    def error(keys: tuple[int | str, ...], problem: str) -> ConfigError:
        shown = _dotted(keys)
        for axis in cell or ():
            if any(shown == path or shown.startswith(f"{path}.") or path.startswith(f"{shown}.") for path in paths(axis)):
                included = document.value[_MATRIX].get(INCLUDE) or []
                inside = (INCLUDE, included.index(cell)) if cell in included else ()
                return document.error((_MATRIX, *inside, axis), problem, ".".join((_MATRIX, *inside[:1], axis)))
        return document.error(keys, problem, shown)

    try:
        file = TuneFile.model_validate(told)
    except ValidationError as caught:
        first = caught.errors()[0]
        raise error(tuple(first["loc"]), _problem(first, told)) from None
    folder = Path(document.name).resolve().parent
    arguments = {key: getattr(file, key) for key in TuneFile.model_fields}
    for key in ("build_model", "data", "validation"):
        if arguments[key] is not None:
            arguments[key] = Reference(arguments[key], str(folder))
            try:
                arguments[key].validate()
            except UsageError as caught:
                raise error((key,), str(caught)) from None
    return {**arguments, "space": file.space.values(), "baseline": file.baseline.model_dump(exclude_none=True)}
