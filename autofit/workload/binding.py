"""How a workload's functions are called: a check of their arguments without calling them, and the
calls as source code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.result import CallSource
from autofit.workload.fit_options import CALLBACKS, FOLDER, is_made, takes_folder
from autofit.workload.inputs.knobs import is_pydataset, knobs_of
from autofit.workload.own_modules import is_own
from autofit.workload.reference import Reference
from autofit.workload.script.identity import digest_of
from autofit.workload.workload import Workload

_CODE_CHARACTERS = 200  # longest value to write in code
# the beginning of each import line, and the names that complete it
_Imports = dict[str, set[str]]


def bind_all(
    workload: Workload, resolve: Callable[[str, Any], Any]
) -> dict[str, dict[str, str]]:
    """Check the arguments of each function; for `data` and `validation`, return the knobs with
    their parameters' names.
    """
    _bind(
        "build_model",
        resolve("build_model", workload.build_model),
        workload.model_kwargs,
        "model_kwargs",
    )
    knobs = {}
    for key in ("data", "validation"):
        if getattr(workload, key) is None:
            continue
        source = resolve(key, getattr(workload, key))
        kwargs = getattr(workload, f"{key}_kwargs")
        knobs[key] = knobs_of(source, kwargs)
        if key == "validation" and is_pydataset(source):
            knobs[key].pop("batch_size", None)
        if callable(source):
            _bind(
                key,
                source,
                {**dict.fromkeys(knobs[key].values()), **kwargs},
                f"{key}_kwargs",
            )
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
        raise UsageError(
            f"{name}{signature} cannot be called with these arguments: {error}",
            key=kwargs_key,
        ) from None


def call_source_of(workload: Workload) -> CallSource:
    """Return the calls of a workload's functions, written as in the user's own code."""
    if workload.script is not None:
        return CallSource(
            model=workload.script.name,
            data=workload.script.name,
            backend=workload.backend,
            script=workload.script.command,
            digest=digest_of(workload.script),
        )
    same = ("dtype_policy", "jit_compile", "backend", "call", "distribution")
    fields = {name: getattr(workload, name) for name in same}
    imports: _Imports = {line: set() for line in workload.program.imports()}
    function, written, is_whole = _call(workload.build_model, workload.model_kwargs)
    name, is_imported = _name(function, "build_model", imports)
    arguments = [f"{key}={value!r}" for key, value in written.items()]
    if not is_whole:
        arguments.insert(0, "...")
    model = f"{name}({', '.join(arguments)})"
    elided = [] if is_imported and is_whole else ["model"]
    for key in ("data", "validation"):
        of_data, is_whole = _source_of_data(workload, key, imports)
        fields |= of_data
        elided += [] if is_whole else [key]
    # callbacks have no value to show: a function that returns them is called, and others are the
    # user's own
    expressions = {}
    callbacks = workload.fit_kwargs.get(CALLBACKS)
    if is_made(callbacks):
        folder = f"{FOLDER}=..." if takes_folder(callbacks) else ""  # the user names it
        name, is_imported = _name(callbacks, f"make_{CALLBACKS}", imports)
        expressions[CALLBACKS] = f"{name}({folder})"
        elided += [] if is_imported and not folder else ["fit"]
    elif callbacks is not None:
        expressions[CALLBACKS] = "..."
        elided.append("fit")
    return CallSource(
        model=model,
        **fields,
        fit_kwargs={
            name: value
            for name, value in workload.fit_kwargs.items()
            if name not in expressions
        },
        fit_expressions=expressions,
        imports=tuple(
            line + ", ".join(sorted(names)) for line, names in imports.items()
        ),
        settings=workload.program.lines,
        elided=tuple(elided),
    )


def _source_of_data(
    workload: Workload, key: str, imports: _Imports
) -> tuple[dict[str, Any], bool]:
    """Return the fields of a call for `data` or `validation`, and whether its code is whole."""
    data = getattr(workload, key)
    # arrays, and objects with knobs as attributes, have no name in code
    form = "object" if is_pydataset(data) else "arrays"
    made = key
    if callable(data) or isinstance(data, Reference):
        form = "factory"
        made = f"make_{key}"
    function, written, is_whole = _call(data, getattr(workload, f"{key}_kwargs"))
    name, is_imported = _name(function, made, imports)
    fields = {
        key: None if data is None else name,
        f"{key}_kwargs": written,
        f"{key}_form": form,
    }
    return fields, data is None or (is_imported and is_whole)


def _call(part: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any], bool]:
    """Return a function, its arguments whose `repr` is short code for the same value, and whether
    these are all.
    """
    function = part
    given = {**kwargs}
    written = {}
    if isinstance(part, functools.partial) and not part.args:
        function = part.func
        given = {**part.keywords, **kwargs}
    for name, value in given.items():
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            if (
                len(code := repr(value)) <= _CODE_CHARACTERS
                and ast.literal_eval(code) == value
            ):
                written[name] = value
    return function, written, len(written) == len(given)


def _name(function: Any, word: str, imports: _Imports) -> tuple[str, bool]:
    """Return a function's name in code, or else the word, and whether it can be imported; add that
    to `imports`.
    """
    if isinstance(function, Reference):
        module = function.module
        name = function.name
        if function.path is not None:
            imports |= {
                "import sys": set(),
                f"sys.path.insert(0, {str(function.path.parent)!r})": set(),
            }
    else:
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", "")
        if isinstance(function, functools.partial):
            return word, False
        if inspect.ismethod(function):
            owner = function.__self__
            if not isinstance(owner, type):
                return f"{_variable_of(owner)}.{function.__name__}", False
            name = f"{owner.__qualname__}.{function.__name__}"
        *scopes, last = name.split(".")
        if not last.isidentifier():  # of a lambda, or an object
            return word, False
        if "<locals>" in scopes:
            return last, False
    outer = name.partition(".")[0]
    if not all(
        part.isidentifier() for part in module.split(".")
    ):  # a file such as my-train.py
        imports |= {
            "from importlib import import_module": set(),
            f"{outer} = import_module({module!r}).{outer}": set(),
        }
    elif module != "__main__":
        imports.setdefault(f"from {module} import ", set()).add(outer)
    return name, True


def _variable_of(owner: Any) -> str:
    """Return the variable by which the user's code that calls autofit knows an object, or else the
    name of its class.
    """
    names = (
        name
        for caller in inspect.stack(0)
        if is_own(Path(caller.filename))
        for name, value in (
            *caller.frame.f_locals.items(),
            *caller.frame.f_globals.items(),
        )
        if value is owner
    )
    return next(names, type(owner).__name__.lower())
