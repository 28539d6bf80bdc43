"""Types of arguments that several pydantic models share, and readable errors about arguments: all
of a call at once.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ValidationError,
    WrapValidator,
    model_validator,
)

from autofit.errors import Problem, UsageError
from autofit.records.knobs import KNOBS

# the message about a function that a file names
FUNCTION = "write path/to/file.py:function or package.module:function"

# the argument that people mean, and what they write; the knobs' own names are in KNOBS
_SYNONYMS = {
    "build_model": "model model_fn create_model make_model get_model",
    "data": "dataset train_data training_data train_dataset train generator",
    "validation": "validation_data val_data val_dataset val",
    "device_memory": "gpu_memory vram memory_limit memory",
    "host_memory": "ram cpu_memory",
    "max_seconds": "timeout time_limit time_budget budget max_time",
    "max_trials": "trials n_trials num_trials",
    "effective_batch_size": "gradient_accumulation_steps accumulate global_batch_size",
    "dtype_policy": "mixed_precision dtype",
}
_MEANT = {name: key for key, names in _SYNONYMS.items() for name in names.split()}

# what people write at the top, and where it belongs
_PLACES = {
    "is an argument of fit; give it in fit_kwargs": (
        "callbacks class_weight epochs initial_epoch shuffle steps_per_epoch validation_batch_size "
        "validation_freq validation_split validation_steps verbose"
    ),
    "is one of the options; give it in options": (
        "fresh launch max_trial_seconds min_updates sampler tolerance wait"
    ),
    "is a knob; give values to try in space, or your present value in baseline": " ".join(
        name
        for knob, row in KNOBS.items()
        for name in (knob, *row.parameters)
        if name != "batch_size"  # which is an argument, too
    ),
    "is set where the model is compiled, in build_model": "learning_rate loss lr metrics optimizer",
    "is part of the data; give data=(x, y) or (x, y, sample_weight)": (
        "x y x_train y_train sample_weight"
    ),
}
_PLACED = {name: place for place, names in _PLACES.items() for name in names.split()}


def written_as(form: str) -> WrapValidator:
    """Return a validator that replaces pydantic's errors by `form`, such as "write a share below 1,
    such as 0.02".
    """

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            reasons = (
                str(part["ctx"]["error"])
                for part in error.errors()
                if part["type"] == "value_error"
            )
            raise ValueError(next(reasons, form)) from None

    return WrapValidator(validate)


# replaces None by an empty mapping
NONE_IS_EMPTY = BeforeValidator(lambda value: {} if value is None else value)

# keyword arguments for one of the user's functions; None means that there are none
Keywords = Annotated[
    Mapping[str, Any], NONE_IS_EMPTY, written_as("write a mapping of names to values")
]


class ProblemsError(ValueError):
    """Carries problems through pydantic, which collects ValueErrors with what else is wrong."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


@contextlib.contextmanager
def collecting(problems: list[Problem], key: str | None = None) -> Iterator[None]:
    """Collect the problems of a UsageError instead of raising it; `key` is for those without."""
    try:
        yield
    except UsageError as error:
        problems += [
            each if each.key or not key else replace(each, key=key)
            for each in error.problems
        ]


def raise_joined(problems: Sequence[Problem]) -> None:
    """Raise one error that lists these problems, if there are any."""
    if problems:
        raise UsageError(problems) from None


def _explain(cls: Any, values: Any, handler: Any) -> Any:
    try:
        return handler(values)
    except ValidationError as error:
        fields = getattr(cls, "model_fields", {})
        raise_joined(
            [one for part in error.errors() for one in _problems_of(part, fields)]
        )


# turns pydantic's errors into one `UsageError` that names each argument, its value and what is
# allowed
# pydantic types no validator that models share
EXPLAINED: Any = model_validator(mode="wrap")(classmethod(_explain))  # type: ignore[arg-type]


def no_such(name: str, allowed: Collection[str]) -> str:
    """Say that an argument does not exist; name the place where it belongs, what is meant, or all
    that are allowed.
    """
    if name in _PLACED and "workers" not in allowed:  # among knobs, the knob is meant
        return _PLACED[name]
    lower = name.lower()
    meant = [knob for knob, row in KNOBS.items() if lower in row.parameters] + [
        _MEANT.get(lower, "")
    ]
    similar = [key for key in meant if key in allowed] or difflib.get_close_matches(
        lower, allowed, 1
    )
    if similar:
        return f"unknown key; did you mean {similar[0]}?"
    return f"unknown key. Allowed here: {', '.join(allowed)}"


def _problems_of(error: Any, fields: Mapping[str, Any]) -> Sequence[Problem]:
    keys = [str(key) for key in error["loc"]]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ProblemsError):
        return cause.problems
    if error["type"] == "extra_forbidden":
        for name in keys[:-1]:
            inner = fields[name].annotation
            fields = (
                inner.model_fields
                if inspect.isclass(inner) and issubclass(inner, BaseModel)
                else {}
            )
        problem = no_such(
            keys[-1], [name for name, field in fields.items() if not field.exclude]
        )
    elif error["type"] == "missing":
        problem = f"is missing; {FUNCTION}"
    else:
        reason = error["msg"].removeprefix("Value error, ")
        problem = (
            f"{error['input']!r:.100} is not allowed: {reason[0].lower()}{reason[1:]}"
        )
    return [Problem(problem, ".".join(keys) or None)]
