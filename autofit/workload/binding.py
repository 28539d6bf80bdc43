"""Check that the user's functions accept the arguments that trials will pass, without calling the functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from autofit.errors import UsageError
from autofit.workload.fit_options import CALLBACKS, FOLDER, is_made, takes_folder
from autofit.workload.inputs.knobs import is_pydataset, knobs_of
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload


def bind_all(workload: Workload, resolve: Callable[[str, Any], Any]) -> dict[str, dict[str, str]]:
    """Check the arguments of each function; for `data` and `validation`, return the knobs with their parameters' names."""
    _bind("build_model", resolve("build_model", workload.build_model), workload.model_kwargs, "model_kwargs")
    knobs = {}
    for key in ("data", "validation"):
        if getattr(workload, key) is None:
            continue
        source, kwargs = resolve(key, getattr(workload, key)), getattr(workload, f"{key}_kwargs")
        knobs[key] = knobs_of(source, kwargs)
        if key == "validation" and is_pydataset(source):
            knobs[key].pop("batch_size", None)
        if callable(source):
            _bind(key, source, {**dict.fromkeys(knobs[key].values()), **kwargs}, f"{key}_kwargs")
    if is_made(maker := workload.fit_kwargs.get(CALLBACKS)):
        key = f"fit_kwargs.{CALLBACKS}"
        function = resolve(key, maker)
        _bind(CALLBACKS, function, {FOLDER: ""} if takes_folder(function) else {}, key)
    return knobs


def resolve_reference(key: str, part: Any) -> Any:
    """Return the function that a reference names; anything else is returned unchanged."""
    try:
        return part.resolve() if isinstance(part, Reference) else part
    except UsageError as error:
        raise UsageError(str(error), key=key) from None


def _bind(key: str, function: Any, kwargs: Mapping[str, Any], kwargs_key: str) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", key)
        raise UsageError(f"{name}{signature} cannot be called with these arguments: {error}", key=kwargs_key) from None
