"""Types of arguments that several pydantic models share, and readable errors about arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError, WrapValidator, model_validator

from autofit.errors import UsageError
from autofit.records.knobs import DATA_KNOBS, KNOBS


def written_as(form: str) -> WrapValidator:
    """Return a validator that replaces pydantic's errors by `form`, such as "write a percentage (2%) or a share (0.02)"."""

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            reasons = [str(part["ctx"]["error"]) for part in error.errors() if part["type"] == "value_error"]
            raise ValueError(reasons[0] if reasons else form) from None

    return WrapValidator(validate)


NONE_IS_EMPTY = BeforeValidator(lambda value: {} if value is None else value)  # replaces None by an empty mapping

Keywords = Annotated[Mapping[str, Any], NONE_IS_EMPTY, written_as("write a mapping of names to values")]
"""Keyword arguments for one of the user's functions; None means that there are none."""


def _explain(cls: Any, values: Any, handler: Any) -> Any:
    try:
        return handler(values)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [str(key) for key in first["loc"]]
        problem = _problem(first, keys, getattr(cls, "model_fields", {}))
        raise UsageError(problem, key=".".join(keys) or None) from None


EXPLAINED: Any = model_validator(mode="wrap")(classmethod(_explain))  # type: ignore[arg-type]  # pydantic types no shared one
"""Turns pydantic's first error into a `UsageError` that names the argument, its value and what is allowed."""


def no_such(name: str, allowed: Collection[str]) -> str:
    """Say that an argument does not exist; suggest the most similar one and list all that are allowed."""
    # a name such as num_workers stands for its knob
    knobs = [knob for knob in DATA_KNOBS if name in KNOBS[knob].parameters]
    hint = did_you_mean(next((knob for knob in knobs if knob in allowed), name), allowed)
    return f"there is no such key{hint} Allowed here: {', '.join(allowed)}"


def did_you_mean(name: Any, allowed: Iterable[str]) -> str:
    """Return the end of a sentence: "; did you mean …?" with the most similar allowed name, or "." if none is similar."""
    similar = difflib.get_close_matches(str(name), allowed, 1)
    return f"; did you mean {similar[0]}?" if similar else "."


def _problem(error: Any, keys: list[str], fields: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        for key in keys[:-1]:
            inner = fields[key].annotation
            fields = inner.model_fields if inspect.isclass(inner) and issubclass(inner, BaseModel) else {}
        return no_such(keys[-1], [name for name, field in fields.items() if not field.exclude])
    if error["type"] == "missing":
        return "is missing; write path/to/file.py:function or package.module:function"
    reason = error["msg"].removeprefix("Value error, ")
    return f"{error['input']!r} is not allowed: {reason[0].lower()}{reason[1:]}"
