"""The lines to paste: Python code that builds the model and trains it with the chosen config."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.records.knobs import AUTOTUNE
from autofit.records.result import Answer, TuneRecord
from autofit.report.adjustments import adjustments_of
from autofit.report.choice import share_on_each
from autofit.workload.fit_options import FIT, PREDICT
from autofit.workload.inputs.kinds import KINDS, rendered

_IMPORT_TENSORFLOW = "import tensorflow as tf"
# of a line of a comment, and of a call on one line: both fit 80 columns when indented twice
_COMMENT_CHARACTERS = 72
_LINE_CHARACTERS = 60


def render(record: TuneRecord, answer: Answer | None = None) -> str:
    """Return code that trains with an answer's config, or what to change in the user's program.

    The answer is by default the fastest. Of a script, the code is a diff or a command line, which
    the tune has stored.
    """
    chosen = record.fastest if answer is None else answer
    source = record.call_source
    if source.script:
        return chosen.code
    is_fastest = chosen.config == record.fastest.config
    record = replace(record, fastest=chosen)
    arguments, above = _arguments(record)
    lines = _head(record)
    lines += _model_lines(record)
    lines += _settings_of_model(record)
    lines += above
    for sentence in adjustments_of(record, chosen):
        lines += textwrap.wrap(
            sentence,
            _COMMENT_CHARACTERS,
            initial_indent="# to adjust: ",
            subsequent_indent="#   ",
        )
    lines.append(_lines(f"model.{source.call}", arguments))
    if source.call == FIT:
        option = "" if is_fastest else ", same_batch=True"
        lines.append(f"# to compare: callbacks=[autofit.Watch(result{option})]")
    code = "\n".join(lines)
    if "${" in code:
        note = "# replace ${NAME} by the value of the environment variable"
        code = f"{note}\n{code}"
    return code


def kind_of(line: str) -> str:
    """Return what a line of a diff is: file, added, removed or place; "" for any other line."""
    if line.startswith(("---", "+++")):
        return "file"
    return {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "")


def _head(record: TuneRecord) -> list[str]:
    """Return what precedes the model: the environment, imports and settings of Keras."""
    source = record.call_source
    gpus = record.placement.gpus
    lines = []
    # the environment precedes the import of Keras, which reads it
    if source.backend:
        lines += ["import os", f'os.environ["KERAS_BACKEND"] = "{source.backend}"']
    if 1 < len(gpus) < len(record.machine.devices):
        # by UUID, because CUDA's order may not be the driver's
        uuids = ",".join(gpu.uuid for gpu in gpus)
        lines += ["import os", f'os.environ["CUDA_VISIBLE_DEVICES"] = "{uuids}"']
    if source.dtype_policy:
        lines.append("import keras")
    if not source.elided:
        lines += source.imports
    if _is_distributed(record):
        lines.append(BACKENDS[record.description.backend].distribution_import)
    knobs = (*record.data_kwargs.values(), *_validation_knobs(record).values())
    if AUTOTUNE in knobs:
        lines.append(_IMPORT_TENSORFLOW)
    if lines:
        lines = [*dict.fromkeys(lines), ""]
    if source.elided:
        lines.append(
            '# in your program, where "..." stands for what it passes already:'
        )
    else:
        lines += source.settings
    if source.dtype_policy:
        lines.append(f"keras.mixed_precision.set_dtype_policy({source.dtype_policy!r})")
    return lines


def _is_distributed(record: TuneRecord) -> bool:
    return record.placement.count > 1 and record.call_source.distribution is not None


def _model_lines(record: TuneRecord) -> list[str]:
    """Return the lines that build the model; none if the user's program has the same already."""
    source = record.call_source
    given: dict[str, Any] = {}
    if record.description.model_takes_batch and record.config.batch_size:
        given["batch_size"] = record.config.batch_size
    if record.description.accumulates_by == "build_model":
        given |= record.optimizer_kwargs
    model = source.model
    if given:
        opened = model[:-1]
        comma = "" if opened.endswith("(") else ", "
        model = f"{opened}{comma}{', '.join(_keywords(given))})"
    if _is_distributed(record):
        backend = BACKENDS[record.description.backend]()
        return backend.distributed_lines(f"model = {model}")
    if source.elided and not source.dtype_policy and not given:
        return []
    return [f"model = {model}"]


def _settings_of_model(record: TuneRecord) -> list[str]:
    """Return what sets the compiled model and its optimizer."""
    source = record.call_source
    description = record.description
    lines = []
    if source.jit_compile is not None:
        lines.append(f"model.jit_compile = {source.jit_compile}")
    changed = {
        knob: value
        for knob, value in record.compile_kwargs.items()
        if value != description.defaults.get(knob)
    }
    lines += [
        f"# callbacks of batches run once every {steps} batches:"
        for steps in changed.values()
    ]
    lines += _settings("model", changed)
    if record.optimizer_kwargs and description.accumulates_by != "build_model":
        lines += _settings(
            f"model.{description.accumulates_by}", record.optimizer_kwargs
        )
    if shares := share_on_each(record):
        lines.append(f"# {shares}")
    return lines


def _validation_knobs(record: TuneRecord) -> dict[str, Any]:
    if record.call_source.validation is None:
        return {}
    description = record.description
    return rendered(
        description.input_kind,
        description.validation_knobs,
        description.validation_required,
        record.config,
    )


def _arguments(record: TuneRecord) -> tuple[list[str], list[str]]:
    """Return the arguments of the call, and the lines that make the data above it."""
    source = record.call_source
    arguments, above = _data(record, "data", record.data_kwargs)
    is_whole = arguments != ["..."]
    if source.validation is not None:
        validation, above_validation = _data(
            record, "validation", _validation_knobs(record)
        )
        above += above_validation
        if validation != ["..."]:
            arguments.append(f"validation_data={', '.join(validation)}")
        # what the program passes already contains the validation, too
        elif is_whole:
            arguments.append("validation_data=...")
    for name, value in record.fit_kwargs.items():
        is_passed = not is_whole and name in source.fit_kwargs
        if not is_passed or source.fit_kwargs[name] != value:
            arguments.append(f"{name}={value!r}")
    if is_whole:
        arguments += [f"{name}={code}" for name, code in source.fit_expressions.items()]
    return arguments, above


def _data(
    record: TuneRecord, key: str, knobs: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the arguments of `fit` for `data` or `validation`, and the lines before that call."""
    source = record.call_source
    description = record.description
    name = getattr(source, key)
    form = getattr(source, f"{key}_form")
    if form == "object":
        return ["..."], [
            f"# {name}: the dataset that you gave to autofit",
            *_settings(name, knobs),
        ]
    if form == "arrays":
        return ["..."], []
    # if some of the arguments are elided, `...` stands for them
    arguments = ["..."] if key in source.elided else []
    arguments += _keywords({**getattr(source, f"{key}_kwargs"), **_python(knobs)})
    made = _lines(name, arguments)
    if key == "validation" or not KINDS[description.input_kind].fit_makes_batches:
        return [made], []
    parts = ("x", "y", "sample_weight")[: description.batch_parts or 1]
    names = "(x,)" if description.batch_parts == 1 else ", ".join(parts)
    if source.call == PREDICT:
        parts = parts[:1]
    by_name = [f"{part}={part}" for part in parts[2:]]
    return [*parts[:2], *by_name], [f"{names} = {made}"]


def _keywords(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


class _Autotune(int):
    """The integer -1 of AUTOTUNE, whose `repr` is `tf.data.AUTOTUNE`."""

    def __repr__(self) -> str:
        return "tf.data.AUTOTUNE"


def _python(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of knobs with -1 written as AUTOTUNE, which is what -1 means for every
    knob.
    """
    return {
        name: _Autotune(value) if value == AUTOTUNE else value
        for name, value in knobs.items()
    }


def kwargs_as_python(answer: Answer) -> str:
    """Return the arguments of an answer as Python assignments."""
    kwargs = {**kwargs_of(answer), "data_kwargs": _python(answer.data_kwargs)}
    lines = [f"{name} = {values!r}" for name, values in kwargs.items()]
    if AUTOTUNE in answer.data_kwargs.values():
        lines = [_IMPORT_TENSORFLOW, "", *lines]
    return "\n".join(lines)


def kwargs_of(answer: Answer) -> dict[str, dict[str, Any]]:
    """Return the arguments of data and `fit`, and those of `compile` and the optimizer if any."""
    kwargs = {
        "data_kwargs": dict(answer.data_kwargs),
        "fit_kwargs": dict(answer.fit_kwargs),
    }
    for name in ("compile_kwargs", "optimizer_kwargs"):
        if given := getattr(answer, name):
            kwargs[name] = dict(given)
    return kwargs


def _settings(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"{name}.{key} = {value!r}" for key, value in values.items()]


def _lines(name: str, arguments: list[str]) -> str:
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE_CHARACTERS and "\n" not in line:
        return line
    inner = "".join(f"{argument},\n" for argument in arguments)
    return f"{name}(\n{textwrap.indent(inner, '    ')})"
