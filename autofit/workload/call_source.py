"""The source code that calls the user's functions, for the snippet that a report shows."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from autofit.records.result import CallSource, DataForm
from autofit.workload.callbacks import FOLDER, takes_folder
from autofit.workload.fit_options import CALLBACKS, is_made
from autofit.workload.inputs.knobs import is_pydataset
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)

_CODE_CHARACTERS = 200  # longest value to write in code

_Imports = dict[str, set[str]]  # the beginning of each import line, and the names that complete it


def call_source_of(workload: Workload) -> CallSource:
    """Return the calls of a workload's functions, written as in the user's own code."""
    imports: _Imports = {line: set() for line in workload.program.imports}
    build, model_kwargs = _unwrapped(workload.build_model, workload.model_kwargs)
    name, written = _name(build, imports), _written(model_kwargs)
    left_out = ["..."] if len(written) < len(model_kwargs) else []
    model = f"{name or 'build_model'}({', '.join([*left_out, *(f'{key}={value!r}' for key, value in written.items())])})"
    elided = ["model"] if name is None or left_out else []
    sources: dict[str, Any] = {}
    for key in ("data", "validation"):
        source, is_whole = _source(key, workload, imports)
        sources |= source
        elided += [] if is_whole else [key]
    # arguments of `fit` without a value to show: a function that returns the value is called, callbacks are the user's own
    fit_expressions = {
        name: f"{_name(value, imports) or f'make_{name}'}({_given(name, value)})" if is_made(value) else "..."
        for name, value in workload.fit_kwargs.items()
        if name == CALLBACKS or is_made(value)
    }
    elided += ["fit"] if any("..." in code for code in fit_expressions.values()) else []
    return CallSource(
        model=model,
        **sources,
        fit_kwargs={name: value for name, value in workload.fit_kwargs.items() if name not in fit_expressions},
        fit_expressions=fit_expressions,
        imports=tuple(line + ", ".join(sorted(names)) for line, names in imports.items()),
        dtype_policy=workload.dtype_policy,
        jit_compile=workload.jit_compile,
        backend=workload.backend,
        call=workload.call,
        distribution=workload.distribution,
        settings=workload.program.lines,
        elided=tuple(elided),
    )


def _given(name: str, function: Any) -> str:
    """Return the arguments of a function for an argument of `fit`: callbacks may take a folder, which the user names."""
    return f"{FOLDER}=..." if name == CALLBACKS and takes_folder(function) else ""


def _source(key: str, workload: Workload, imports: _Imports) -> tuple[dict[str, Any], bool]:
    """Return the fields of `CallSource` for `data` or `validation`, and whether they are all that its code needs."""
    data = getattr(workload, key)
    named, kwargs = _unwrapped(data, getattr(workload, f"{key}_kwargs"))
    written = _written(kwargs)
    # arrays, and objects with knobs as attributes, have no name in code
    form, name, unnamed = DataForm.OBJECT if is_pydataset(data) else DataForm.ARRAYS, None, key
    if callable(data) or isinstance(data, Reference):
        form, name, unnamed = DataForm.FACTORY, _name(named, imports), f"make_{key}"
    source = {key: None if data is None else name or unnamed, f"{key}_kwargs": written, f"{key}_form": form}
    return source, data is None or (name is not None and written == kwargs)


def _written(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments whose `repr` is short code for the same value, unlike that of arrays and most objects."""
    return {name: value for name, value in kwargs.items() if _is_code(value)}


def _is_code(value: Any) -> bool:
    code = repr(value)
    try:
        return len(code) <= _CODE_CHARACTERS and bool(ast.literal_eval(code) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _unwrapped(part: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace a `functools.partial` by its function and merge its keywords into `kwargs`; return others unchanged."""
    if isinstance(part, functools.partial):
        try:
            signature = inspect.signature(part.func)
            given = signature.bind_partial(*part.args).arguments
        except (TypeError, ValueError):
            return part, dict(kwargs)
        if not any(signature.parameters[name].kind in _UNNAMED for name in given):
            return part.func, {**given, **part.keywords, **kwargs}
    return part, dict(kwargs)


def _name(function: Any, imports: _Imports) -> str | None:
    """Return a function's name in code and add its import to `imports`; None if it has no name to import."""
    if isinstance(function, Reference):
        module, name = function.module, function.name
        if function.path is not None:
            imports |= {"import sys": set(), f"sys.path.insert(0, {str(function.path.parent)!r})": set()}
    else:
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if isinstance(function, functools.partial) or not name.isidentifier():
            return None
    if module != "__main__":
        imports.setdefault(f"from {module} import ", set()).add(name)
    return name
