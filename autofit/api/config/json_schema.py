"""JSON Schema of a tuning file, for editors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from autofit.api.config.load import MATRIX, USER_KEY_PREFIX
from autofit.api.sweep import sweep
from autofit.api.tune import tune
from autofit.tuning.settings import TuneFile

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a tuning file; keys are described as the arguments of `tune()` and `sweep()`."""
    schema = TuneFile.model_json_schema()
    properties = schema["properties"]
    properties[MATRIX] = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    descriptions = {**_argument_descriptions(sweep), **_argument_descriptions(tune)}
    for key, fields in properties.items():
        fields["description"] = descriptions.get(key, fields.get("description", ""))
    for part in (schema, *schema.get("$defs", {}).values()):
        part["properties"] = {key: _or_variable(fields) for key, fields in part["properties"].items()}
    schema["patternProperties"] = {f"^{USER_KEY_PREFIX}": {"description": "your own keys, for anchors; ignored"}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "autofit tuning file"}


def _argument_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """The descriptions under "Args:" in a docstring, each on one line."""
    section = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(section)}


def _or_variable(fields: dict[str, Any]) -> dict[str, Any]:
    """A property's schema that also allows a string with an environment variable."""
    types = [option.get("type") for option in fields.get("anyOf", [fields])]
    if "string" in types or not {"integer", "number", "boolean"} & set(types):
        return fields
    kept: dict[str, Any] = {key: fields[key] for key in ("default", "description", "title") if key in fields}
    rest = {key: value for key, value in fields.items() if key not in kept}
    return {**kept, "anyOf": [*rest.get("anyOf", [rest]), {"type": "string", "pattern": r"\$\{"}]}
