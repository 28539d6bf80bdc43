"""The lines to paste: Python that builds the model and trains it with the chosen config."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from autofit.records import TuningRecord, Usage
from autofit.workload import Reference, Workload


def usage_of(workload: Workload) -> Usage:
    """How the user would write the workload's functions in code."""
    imports: list[str] = []
    arguments = ", ".join(f"{key}={value!r}" for key, value in workload.model_kwargs.items())
    is_arrays = not callable(workload.data) and not isinstance(workload.data, Reference)
    return Usage(
        model=f"{_name(workload.build_model, 'build_model', imports)}({arguments})",
        data="data" if is_arrays else _name(workload.data, "make_data", imports),
        data_kwargs=dict(workload.data_kwargs),
        data_is_arrays=is_arrays,
        validation=None if workload.validation is None else _validation(workload.validation, imports),
        validation_kwargs=dict(workload.validation_kwargs),
        imports=tuple(imports),
    )


def render(record: TuningRecord) -> str:
    """Python lines that train with the chosen config, as they would be pasted."""
    usage = record.usage
    lines = list(usage.imports)
    if lines:
        lines.append("")
    lines.append(f"model = {usage.model}")
    if record.description.input_kind == "arrays":
        arrays = usage.data if usage.data_is_arrays else f"{usage.data}({_arguments(usage.data_kwargs)})"
        arguments = [f"*{arrays}"]
    else:
        arguments = [f"{usage.data}({_arguments({**usage.data_kwargs, **record.data_kwargs})})"]
    if usage.validation is not None:
        if record.description.input_kind == "arrays":
            validation = (
                usage.validation if usage.data_is_arrays else f"{usage.validation}({_arguments(usage.validation_kwargs)})"
            )
        else:
            validation = f"{usage.validation}({_arguments({**usage.validation_kwargs, **record.data_kwargs})})"
        arguments.append(f"validation_data={validation}")
    arguments += [f"{key}={value!r}" for key, value in record.fit_kwargs.items()]
    if len(arguments) == 1:
        lines.append(f"model.fit({arguments[0]})")
    else:
        lines += ["model.fit(", *(f"    {argument}," for argument in arguments), ")"]
    return "\n".join(lines)


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


def _validation(validation: Any, imports: list[str]) -> str:
    if callable(validation) or isinstance(validation, Reference):
        return _name(validation, "make_validation", imports)
    return "validation"


def _name(function: Any, otherwise: str, imports: list[str]) -> str:
    """The function's name in code, its import added to `imports`; `otherwise` where it has none that can be imported."""
    if isinstance(function, Reference):
        if function.path is not None:
            _add(imports, "import sys")
            _add(imports, f"sys.path.insert(0, {str(function.path.parent)!r})")
        _add(imports, f"from {function.module} import {function.name}")
        return function.name
    name = getattr(function, "__qualname__", "")
    if isinstance(function, functools.partial) or not name.isidentifier():
        return otherwise
    if function.__module__ != "__main__":
        _add(imports, f"from {function.__module__} import {name}")
    return str(name)


def _add(lines: list[str], line: str) -> None:
    if line not in lines:
        lines.append(line)


def _arguments(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
