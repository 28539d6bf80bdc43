"""The lines to paste: Python code that builds the model and trains it with the chosen config."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.records.result import Answer, TuneRecord
from autofit.records.trial import AUTOTUNE
from autofit.report.adjustments import adjustments_of
from autofit.report.choice import share_on_each
from autofit.workload.fit_options import FIT, PREDICT
from autofit.workload.inputs.kinds import KINDS, rendered

_ARRAYS = ("x", "y", "sample_weight")  # arguments of `fit`
_IMPORT_TENSORFLOW = "import tensorflow as tf"
_TO_CHANGE = '# in your program, where "..." stands for what it passes already:'
_WATCH = "# to compare: callbacks=[autofit.Watch(result{})]"
_VARIABLES = "# replace ${NAME} by the value of the environment variable"
_COMMENT_CHARACTERS = 72  # of a line of a comment; it fits 80 columns when indented twice
_LINE_CHARACTERS = 60  # of a call on one line; it fits 80 columns when indented twice


def render(record: TuneRecord, answer: Answer | None = None) -> str:
    """Return code that trains with an answer's config, by default the fastest, or what to change in the user's program.

    Of a script, that is a diff or a command line, which the tune has stored.
    """
    if record.call_source.script:
        return (record.fastest if answer is None else answer).code
    watched = (
        "" if answer is None or answer.config == record.fastest.config else ", same_batch=True"
    )
    record = record if answer is None else replace(record, fastest=answer)
    source, description = record.call_source, record.description
    policy = source.dtype_policy
    kind, names, required = (
        description.input_kind,
        description.validation_knobs,
        description.validation_required,
    )
    validation_knobs = (
        {} if source.validation is None else rendered(kind, names, required, record.config)
    )
    environment, needed, model_lines = _on_devices(record, f"model = {_model(record)}")
    if AUTOTUNE in (*record.data_kwargs.values(), *validation_knobs.values()):
        needed.append(_IMPORT_TENSORFLOW)
    # the environment precedes the import of Keras, which reads it
    lines = (
        ["import os", f'os.environ["KERAS_BACKEND"] = "{source.backend}"'] if source.backend else []
    )
    lines += [
        *environment,
        *(["import keras"] if policy else []),
        *([] if source.elided else source.imports),
        *needed,
    ]
    lines = [*dict.fromkeys(lines), *([""] if lines else [])]
    lines += [_TO_CHANGE] if source.elided else source.settings
    if policy:
        lines.append(f"keras.mixed_precision.set_dtype_policy({policy!r})")
    if (
        not source.elided
        or policy
        or len(model_lines) > 1
        or model_lines[0] != f"model = {source.model}"
    ):
        lines += model_lines
    if source.jit_compile is not None:
        lines.append(f"model.jit_compile = {source.jit_compile}")
    changed = {
        knob: value
        for knob, value in record.compile_kwargs.items()
        if value != description.defaults.get(knob)
    }
    lines += [
        f"# callbacks of batches run once every {steps} batches:" for steps in changed.values()
    ]
    lines += _settings("model", changed)
    if record.optimizer_kwargs and description.accumulates_by != "build_model":
        lines += _settings(f"model.{description.accumulates_by}", record.optimizer_kwargs)
    if shares := share_on_each(record):
        lines.append(f"# {shares}")
    arguments, before = _data(record, "data", record.data_kwargs)
    lines += before
    if source.validation is not None:
        validation, before = _data(record, "validation", validation_knobs)
        lines += before
        if validation != ["..."]:
            arguments.append(f"validation_data={', '.join(validation)}")
        elif arguments != ["..."]:  # which contains it
            arguments.append("validation_data=...")
    is_whole = arguments[0] != "..."
    given = {} if is_whole else source.fit_kwargs
    arguments += [
        f"{key}={value!r}"
        for key, value in record.fit_kwargs.items()
        if key not in given or given[key] != value
    ]
    arguments += [f"{key}={code}" for key, code in source.fit_expressions.items() if is_whole]
    for sentence in adjustments_of(record, record.fastest):
        lines += textwrap.wrap(
            sentence, _COMMENT_CHARACTERS, initial_indent="# to adjust: ", subsequent_indent="#   "
        )
    lines += [
        _lines(f"model.{source.call}", arguments),
        *([_WATCH.format(watched)] if source.call == FIT else []),
    ]
    code = "\n".join(lines)
    return f"{_VARIABLES}\n{code}" if "${" in code else code


def _data(record: TuneRecord, key: str, knobs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the arguments of `fit` for `data` or `validation`, and the lines before that call."""
    source, description = record.call_source, record.description
    name, form = getattr(source, key), getattr(source, f"{key}_form")
    if form == "object":
        return ["..."], [f"# {name}: the dataset that you gave to autofit", *_settings(name, knobs)]
    if form == "arrays":
        return ["..."], []
    kwargs = {**getattr(source, f"{key}_kwargs"), **_python(knobs)}
    # if some of the arguments are elided, `...` stands for them
    made = _lines(
        name,
        [
            *(["..."] if key in source.elided else []),
            *(f"{k}={value!r}" for k, value in kwargs.items()),
        ],
    )
    if key == "validation" or not KINDS[description.input_kind].fit_makes_batches:
        return [made], []
    parts = _ARRAYS[: description.batch_parts or 1]
    names = "(x,)" if description.batch_parts == 1 else ", ".join(parts)
    passed = parts[:1] if source.call == PREDICT else parts
    return [*passed[:2], *(f"{part}={part}" for part in passed[2:])], [f"{names} = {made}"]


class _Autotune(int):
    """The integer -1 of AUTOTUNE, whose `repr` is `tf.data.AUTOTUNE`."""

    def __repr__(self) -> str:
        return "tf.data.AUTOTUNE"


def _python(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of knobs with -1 written as AUTOTUNE, which is what -1 means for every knob."""
    return {name: _Autotune(value) if value == AUTOTUNE else value for name, value in knobs.items()}


def kwargs_as_python(record: TuneRecord | Answer) -> str:
    """Return the arguments of a result as Python assignments."""
    kwargs = {**kwargs_of(record), "data_kwargs": _python(record.data_kwargs)}
    lines = [f"{name} = {values!r}" for name, values in kwargs.items()]
    return "\n".join(
        [_IMPORT_TENSORFLOW, "", *lines] if AUTOTUNE in record.data_kwargs.values() else lines
    )


def kwargs_of(record: TuneRecord | Answer) -> dict[str, dict[str, Any]]:
    """Return `data_kwargs`, `fit_kwargs`, and those of `compile_kwargs` to `optimizer_kwargs` that are not empty."""
    names = ("data_kwargs", "fit_kwargs", "compile_kwargs", "optimizer_kwargs")
    return {
        name: dict(kwargs)
        for name in names
        if (kwargs := getattr(record, name)) or name in names[:2]
    }


def _model(record: TuneRecord) -> str:
    expression, batch_size = record.call_source.model, record.config.batch_size
    given = (
        {"batch_size": batch_size} if record.description.model_takes_batch and batch_size else {}
    )
    if record.description.accumulates_by == "build_model":
        given |= record.optimizer_kwargs
    if not given:
        return expression
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{expression[:-1]}{'' if expression.endswith('()') else ', '}{arguments})"


def _settings(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"{name}.{key} = {value!r}" for key, value in values.items()]


def _lines(name: str, arguments: list[str]) -> str:
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE_CHARACTERS and "\n" not in line:
        return line
    inner = "".join(f"{argument},\n" for argument in arguments)
    return f"{name}(\n{textwrap.indent(inner, '    ')})"


def _on_devices(record: TuneRecord, assignment: str) -> tuple[list[str], list[str], list[str]]:
    """Return three lists of lines: the environment, the imports, and the code that builds the model by `assignment`."""
    placement, environment = record.placement, []
    if 1 < len(placement.gpus) < len(record.machine.devices):
        uuids = ",".join(
            gpu.uuid for gpu in placement.gpus
        )  # because CUDA's order may not be the driver's
        environment = ["import os", f'os.environ["CUDA_VISIBLE_DEVICES"] = "{uuids}"']
    if placement.count == 1 or not record.call_source.distribution:
        return environment, [], [assignment]
    backend = BACKENDS[record.description.backend]()
    return environment, [backend.distribution_import], backend.distributed_lines(assignment)
