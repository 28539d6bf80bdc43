"""The lines to paste: Python that builds the model and trains it with the chosen config."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping
from typing import Any

from autofit.results import TuningRecord, Usage
from autofit.workload import Reference, Workload

_LINE_CHARACTERS = 60  # short enough to stand indented, twice, on 80 columns


def usage_of(workload: Workload) -> Usage:
    """How the user would write the workload's functions in code."""
    imports: list[str] = []
    arguments = ", ".join(f"{key}={value!r}" for key, value in workload.model_kwargs.items())
    validation = None
    if workload.validation is not None:
        otherwise = "validation" if _is_arrays(workload.validation) else "make_validation"
        validation = _name(workload.validation, otherwise, imports)
    return Usage(
        model=f"{_name(workload.build_model, 'build_model', imports)}({arguments})",
        data=_name(workload.data, "data" if _is_arrays(workload.data) else "make_data", imports),
        data_kwargs=dict(workload.data_kwargs),
        data_is_arrays=_is_arrays(workload.data),
        validation=validation,
        validation_kwargs=dict(workload.validation_kwargs),
        validation_is_arrays=_is_arrays(workload.validation),
        imports=tuple(imports),
    )


def render(record: TuningRecord) -> str:
    """Python lines that train with the chosen config, as they would be pasted."""
    usage = record.usage
    training = usage.data if usage.data_is_arrays else _call(usage.data, {**usage.data_kwargs, **record.data_kwargs})
    arguments = [f"*{training}" if record.description.input_kind == "arrays" else training]
    if usage.validation is not None:
        values = record.config.values()
        knobs = {knob: values[knob] for knob in record.description.validation_knobs if knob in values}
        called = _call(usage.validation, {**usage.validation_kwargs, **knobs})
        arguments.append(f"validation_data={usage.validation if usage.validation_is_arrays else called}")
    arguments += [f"{key}={value!r}" for key, value in record.fit_kwargs.items()]
    lines = [*usage.imports, ""] if usage.imports else []
    return "\n".join([*lines, f"model = {usage.model}", _lines("model.fit", arguments)])


def kwargs_as_python(record: TuningRecord) -> str:
    """Two assignments, `data_kwargs` and `fit_kwargs`."""
    return f"data_kwargs = {dict(record.data_kwargs)!r}\nfit_kwargs = {dict(record.fit_kwargs)!r}"


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


def _is_arrays(data: Any) -> bool:
    return not callable(data) and not isinstance(data, Reference)


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


def _call(name: str, kwargs: Mapping[str, Any]) -> str:
    return _lines(name, [f"{key}={value!r}" for key, value in kwargs.items()])


def _lines(name: str, arguments: list[str]) -> str:
    """A call on one line, or with an argument a line where that would be too long."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE_CHARACTERS and "\n" not in line:
        return line
    inner = "".join(f"{argument},\n" for argument in arguments)
    return f"{name}(\n{textwrap.indent(inner, '    ')})"
