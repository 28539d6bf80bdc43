"""The source code that calls the user's functions, for the snippet that a report shows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from autofit.records.result import CallSource, DataForm
from autofit.workload.environment import is_from_environment
from autofit.workload.fit_options import CALLBACKS, is_made
from autofit.workload.inputs.knobs import is_pydataset
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def call_source_of(workload: Workload) -> CallSource:
    """Return the calls of a workload's functions, written as in the user's own code."""
    imports: list[str] = []
    build, model_kwargs = _unwrapped(workload.build_model, workload.model_kwargs)
    data, data_kwargs = _unwrapped(workload.data, workload.data_kwargs)
    make_validation, validation_kwargs = _unwrapped(workload.validation, workload.validation_kwargs)
    arguments = ", ".join(f"{key}={value!r}" for key, value in model_kwargs.items())
    validation = None
    if workload.validation is not None:
        unnamed = "make_validation" if _form(workload.validation) is DataForm.FACTORY else "validation"
        validation = _name(make_validation, unnamed, imports)
    data_values, data_expressions = _split(data_kwargs)
    validation_values, validation_expressions = _split(validation_kwargs)
    expressions = _fit_expressions(workload.fit_kwargs, imports)
    if is_from_environment([model_kwargs, data_kwargs, validation_kwargs]):
        imports.insert(0, "import os")
    return CallSource(
        model=f"{_name(build, 'build_model', imports)}({arguments})",
        data=_name(data, "make_data" if _form(workload.data) is DataForm.FACTORY else "data", imports),
        data_kwargs=data_values,
        data_expressions=data_expressions,
        data_form=_form(workload.data),
        validation=validation,
        validation_kwargs=validation_values,
        validation_expressions=validation_expressions,
        validation_form=_form(workload.validation),
        fit_kwargs={name: value for name, value in workload.fit_kwargs.items() if name not in expressions},
        fit_expressions=expressions,
        imports=tuple(imports),
        dtype_policy=workload.dtype_policy,
        jit_compile=workload.jit_compile,
        backend=workload.backend,
        distribution=workload.distribution,
    )


def _split(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that the snippet shows, and the code that reads those that come from the environment."""
    secret = {name: repr(value) for name, value in kwargs.items() if is_from_environment(value)}
    return {name: value for name, value in kwargs.items() if name not in secret}, secret


def _form(data: Any) -> DataForm:
    if callable(data) or isinstance(data, Reference):
        return DataForm.FACTORY
    return DataForm.OBJECT if is_pydataset(data) else DataForm.ARRAYS


def _fit_expressions(fit_kwargs: Mapping[str, Any], imports: list[str]) -> dict[str, str]:
    """Return the arguments of `fit` that have no value to show, each as code.

    The code is a call of the function that returns the value, or, for callbacks in a list, the name of the argument.
    """
    made = {name: value for name, value in fit_kwargs.items() if name == CALLBACKS or is_made(value)}
    return {name: f"{_name(value, f'make_{name}', imports)}()" if is_made(value) else name for name, value in made.items()}


def _unwrapped(part: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace a `functools.partial` by its function, and merge its arguments into `kwargs`.

    Any other object is returned unchanged, and so is a partial with arguments that cannot be passed by keyword.
    """
    if not isinstance(part, functools.partial):
        return part, dict(kwargs)
    try:
        signature = inspect.signature(part.func)
        given = signature.bind_partial(*part.args).arguments
    except (TypeError, ValueError):
        return part, dict(kwargs)
    if any(signature.parameters[name].kind in _UNNAMED for name in given):
        return part, dict(kwargs)
    return part.func, {**given, **part.keywords, **kwargs}


def _name(function: Any, unnamed: str, imports: list[str]) -> str:
    """Return the name of a function in code and add its import to `imports`.

    The name is `unnamed` if the function cannot be imported by its own name.
    """
    if isinstance(function, Reference):
        if function.path is not None:
            folder = f"sys.path.insert(0, {str(function.path.parent)!r})"
            imports += [line for line in ("import sys", folder) if line not in imports]
        _import(function.module, function.name, imports)
        return function.name
    name = getattr(function, "__qualname__", "")
    if isinstance(function, functools.partial) or not name.isidentifier():
        return unnamed
    if function.__module__ != "__main__":
        _import(function.__module__, name, imports)
    return str(name)


def _import(module: str, name: str, imports: list[str]) -> None:
    """Add a name to the import line of its module; add that line if there is none."""
    start = f"from {module} import "
    for position, line in enumerate(imports):
        if line.startswith(start):
            names = {*line.removeprefix(start).split(", "), name}
            imports[position] = start + ", ".join(sorted(names))
            return
    imports.append(start + name)
