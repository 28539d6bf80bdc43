"""The JSON Schema of a tuning file, for editors."""

from __future__ import annotations

from typing import Any

from autofit.api.config.load import MATRIX, USER_KEY_PREFIX, TuneFile


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a tuning file."""
    schema = TuneFile.model_json_schema()
    schema["properties"][MATRIX] = {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
        "description": "Values to combine in a sweep: a list for each dotted argument.",
    }
    for part in (schema, *schema.get("$defs", {}).values()):
        part["properties"] = {key: _or_variable(fields) for key, fields in part["properties"].items()}
    schema["patternProperties"] = {
        f"^{USER_KEY_PREFIX}": {"description": "Your own keys, for anchors; autofit ignores them."}
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "autofit tuning file"}


def _or_variable(fields: dict[str, Any]) -> dict[str, Any]:
    """Extend a property's schema to also allow a string with an environment variable."""
    types = [option.get("type") for option in fields.get("anyOf", [fields])]
    if "string" in types or not {"integer", "number", "boolean"} & set(types):
        return fields
    kept: dict[str, Any] = {key: fields[key] for key in ("default", "description", "title") if key in fields}
    rest = {key: value for key, value in fields.items() if key not in kept}
    return {**kept, "anyOf": [*rest.get("anyOf", [rest]), {"type": "string", "pattern": r"\$\{"}]}
