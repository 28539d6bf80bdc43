"""How a workload's functions are called: a check of their arguments without calling them, and the calls as source code."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from autofit.errors import UsageError
from autofit.records.result import CallSource
from autofit.workload.fit_options import CALLBACKS, FOLDER, is_made, takes_folder
from autofit.workload.inputs.knobs import is_pydataset, knobs_of
from autofit.workload.reference import Reference
from autofit.workload.workload import Workload

_CODE_CHARACTERS = 200  # longest value to write in code
_Imports = dict[str, set[str]]  # the beginning of each import line, and the names that complete it


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


def call_source_of(workload: Workload) -> CallSource:
    """Return the calls of a workload's functions, written as in the user's own code."""
    same = ("dtype_policy", "jit_compile", "backend", "call", "distribution")
    fields: dict[str, Any] = {name: getattr(workload, name) for name in same}
    names = [line.partition(".")[0] for line in workload.program.lines]
    imports: _Imports = {"import tensorflow as tf" if name == "tf" else f"import {name}": set() for name in names}
    build, given = _unwrapped(workload.build_model, workload.model_kwargs)
    name, written = _name(build, imports), _written(given)
    left_out = ["..."] if len(written) < len(given) else []
    model = f"{name or 'build_model'}({', '.join([*left_out, *(f'{key}={value!r}' for key, value in written.items())])})"
    elided = ["model"] if name is None or left_out else []
    for key in ("data", "validation"):
        data = getattr(workload, key)
        named, given = _unwrapped(data, getattr(workload, f"{key}_kwargs"))
        written = _written(given)
        # arrays, and objects with knobs as attributes, have no name in code
        form, name, unnamed = "object" if is_pydataset(data) else "arrays", None, key
        if callable(data) or isinstance(data, Reference):
            form, name, unnamed = "factory", _name(named, imports), f"make_{key}"
        fields |= {key: None if data is None else name or unnamed, f"{key}_kwargs": written, f"{key}_form": form}
        elided += [] if data is None or (name is not None and written == given) else [key]
    # callbacks have no value to show: a function that returns them is called, and others are the user's own
    expressions, callbacks = {}, workload.fit_kwargs.get(CALLBACKS)
    if callbacks is not None:
        expressions[CALLBACKS] = "..."
    if is_made(callbacks):
        folder = f"{FOLDER}=..." if takes_folder(callbacks) else ""  # the user names it
        expressions[CALLBACKS] = f"{_name(callbacks, imports) or f'make_{CALLBACKS}'}({folder})"
    elided += ["fit"] if "..." in expressions.get(CALLBACKS, "") else []
    return CallSource(
        model=model,
        **fields,
        fit_kwargs={name: value for name, value in workload.fit_kwargs.items() if name not in expressions},
        fit_expressions=expressions,
        imports=tuple(line + ", ".join(sorted(names)) for line, names in imports.items()),
        settings=workload.program.lines,
        elided=tuple(elided),
    )


def _written(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments whose `repr` is short code for the same value, unlike that of arrays and most objects."""
    written = {}
    for name, value in kwargs.items():
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            if len(code := repr(value)) <= _CODE_CHARACTERS and ast.literal_eval(code) == value:
                written[name] = value
    return written


def _unwrapped(part: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace a `functools.partial` by its function and merge its keywords into `kwargs`; return others unchanged."""
    is_named = isinstance(part, functools.partial) and not part.args
    return (part.func, {**part.keywords, **kwargs}) if is_named else (part, dict(kwargs))


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
