"""The lines to paste: Python that builds the model and trains it with the chosen config."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autofit.inputs import readymade, render_validation
from autofit.results import TuningRecord, Usage
from autofit.workload import Reference, Workload

_ARRAYS = ("x", "y", "sample_weight")  # as `fit` calls them
_SET_POLICY = {"keras": "set_dtype_policy", "tf_keras": "set_global_policy"}  # in their modules mixed_precision
_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_LINE_CHARACTERS = 60  # short enough to stand indented, twice, on 80 columns


def usage_of(workload: Workload) -> Usage:
    """How the user would write the workload's functions in code."""
    imports: list[str] = []
    build, model_kwargs = _unwrapped(workload.build_model, workload.model_kwargs)
    data, data_kwargs = _unwrapped(workload.data, workload.data_kwargs)
    held_back, validation_kwargs = _unwrapped(workload.validation, workload.validation_kwargs)
    arguments = ", ".join(f"{key}={value!r}" for key, value in model_kwargs.items())
    validation = None
    if workload.validation is not None:
        otherwise = "make_validation" if _form(workload.validation) == "factory" else "validation"
        validation = _name(held_back, otherwise, imports)
    return Usage(
        model=f"{_name(build, 'build_model', imports)}({arguments})",
        data=_name(data, "make_data" if _form(workload.data) == "factory" else "data", imports),
        data_kwargs=data_kwargs,
        data_form=_form(workload.data),
        validation=validation,
        validation_kwargs=validation_kwargs,
        validation_form=_form(workload.validation),
        imports=tuple(imports),
        dtype_policy=workload.dtype_policy,
        jit_compile=workload.jit_compile,
    )


def render(record: TuningRecord) -> str:
    """Python lines that train with the chosen config, as they would be pasted."""
    usage, description = record.usage, record.description
    imports = [f"import {description.keras}", *usage.imports] if usage.dtype_policy else [*usage.imports]
    lines = [*imports, ""] if imports else []
    if usage.dtype_policy:
        lines.append(f"{description.keras}.mixed_precision.{_SET_POLICY[description.keras]}({usage.dtype_policy!r})")
    lines.append(f"model = {_model(record)}")
    if usage.jit_compile is not None:
        lines.append(f"model.jit_compile = {usage.jit_compile}")
    if record.optimizer_kwargs and description.accumulates_by != "build_model":
        lines += _settings(f"model.{description.accumulates_by}", record.optimizer_kwargs)
    training = usage.data
    if usage.data_form == "factory":
        training = _call(usage.data, {**usage.data_kwargs, **record.data_kwargs})
    elif usage.data_form == "object":
        lines += _settings(usage.data, record.data_kwargs)
    arguments = [training]
    if description.input_kind == "arrays":
        parts = _ARRAYS[: description.batch_parts]
        lines.append(f"{', '.join(parts)} = {training}")
        arguments = [*parts[:2], *(f"{part}={part}" for part in parts[2:])]
    if usage.validation is not None:
        smaller = record.validation_batch_size or record.config.batch_size
        knobs = render_validation(description, replace(record.config, batch_size=smaller))
        validation = usage.validation
        if usage.validation_form == "factory":
            validation = _call(usage.validation, {**usage.validation_kwargs, **knobs})
        elif usage.validation_form == "object":
            lines += _settings(usage.validation, knobs)
        arguments.append(f"validation_data={validation}")
    arguments += [f"{key}={value!r}" for key, value in record.fit_kwargs.items()]
    if description.input_kind == "generator" and "steps_per_epoch" not in record.fit_kwargs:
        lines.append("# a generator that does not end needs steps_per_epoch, too")
    return "\n".join([*lines, _lines("model.fit", arguments)])


def kwargs_as_python(record: TuningRecord) -> str:
    """An assignment for each of `kwargs_of`."""
    return "\n".join(f"{name} = {kwargs!r}" for name, kwargs in kwargs_of(record).items())


def kwargs_of(record: TuningRecord) -> dict[str, dict[str, Any]]:
    """`data_kwargs` and `fit_kwargs`, and `optimizer_kwargs` where there are any."""
    found = {"data_kwargs": dict(record.data_kwargs), "fit_kwargs": dict(record.fit_kwargs)}
    return {**found, "optimizer_kwargs": dict(record.optimizer_kwargs)} if record.optimizer_kwargs else found


def baseline_gain(record: TuningRecord) -> str:
    """One line on the gain over the baseline."""
    speedup = record.speedup
    named = f"the baseline ({speedup.baseline})"
    if record.config == speedup.baseline:
        return f"{named} is already the fastest that fits"
    if speedup.ratio is None:
        return f"{named} did not run to its end here: {speedup.baseline_outcome.value}"
    line = f"{speedup.ratio:.2f}x {named}"
    if speedup.low is not None and speedup.high is not None:
        line += f", 95 % interval {speedup.low:.2f} to {speedup.high:.2f} from {speedup.pairs} pairs of runs"
    return line


def _form(data: Any) -> str:
    """What the user hands over: a "factory", an "object" that takes the knobs as attributes, or "arrays"."""
    if callable(data) or isinstance(data, Reference):
        return "factory"
    return "object" if readymade.is_pydataset(data) else "arrays"


def _unwrapped(part: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What a `functools.partial` calls, and all the arguments that it is given by name; anything else is itself, and so is
    a partial some of whose arguments have no name.
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


def _name(function: Any, otherwise: str, imports: list[str]) -> str:
    """The function's name in code, its import added to `imports`; `otherwise` where it has none that can be imported."""
    if isinstance(function, Reference):
        if function.path is not None:
            folder = f"sys.path.insert(0, {str(function.path.parent)!r})"
            imports += [line for line in ("import sys", folder) if line not in imports]
        _import(function.module, function.name, imports)
        return function.name
    name = getattr(function, "__qualname__", "")
    if isinstance(function, functools.partial) or not name.isidentifier():
        return otherwise
    if function.__module__ != "__main__":
        _import(function.__module__, name, imports)
    return str(name)


def _import(module: str, name: str, imports: list[str]) -> None:
    """Add a name to the import line of its module."""
    start = f"from {module} import "
    for position, line in enumerate(imports):
        if line.startswith(start):
            names = {*line.removeprefix(start).split(", "), name}
            imports[position] = start + ", ".join(sorted(names))
            return
    imports.append(start + name)


def _model(record: TuningRecord) -> str:
    """The expression that builds the model, its own argument for the accumulation included."""
    expression = record.usage.model
    if not record.optimizer_kwargs or record.description.accumulates_by != "build_model":
        return expression
    told = ", ".join(f"{key}={value!r}" for key, value in record.optimizer_kwargs.items())
    return f"{expression[:-1]}{'' if expression.endswith('()') else ', '}{told})"


def _settings(name: str, values: Mapping[str, Any]) -> list[str]:
    """A line for each attribute that is set."""
    return [f"{name}.{key} = {value!r}" for key, value in values.items()]


def _call(name: str, kwargs: Mapping[str, Any]) -> str:
    return _lines(name, [f"{key}={value!r}" for key, value in kwargs.items()])


def _lines(name: str, arguments: list[str]) -> str:
    """A call on one line, or with an argument a line where that would be too long."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE_CHARACTERS and "\n" not in line:
        return line
    inner = "".join(f"{argument},\n" for argument in arguments)
    return f"{name}(\n{textwrap.indent(inner, '    ')})"
