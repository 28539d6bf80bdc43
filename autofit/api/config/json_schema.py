"""JSON Schema of a tuning file, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.api.config.load import _MATRIX, _OWN_KEYS
from autofit.tuning.settings import TuneFile


def schema(descriptions: Mapping[str, str]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a tuning file, for editors; `descriptions` say what each key is for."""
    made = TuneFile.model_json_schema()
    made["properties"][_MATRIX] = {
        "type": "object",
        "description": descriptions.get(_MATRIX, ""),
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    for key, told in made["properties"].items():
        told["description"] = descriptions.get(key, told.get("description", ""))
    for part in (made, *made.get("$defs", {}).values()):
        part["properties"] = {key: _or_variable(told) for key, told in part["properties"].items()}
    made["patternProperties"] = {f"^{_OWN_KEYS}": {"description": "your own, for anchors; not read"}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "autofit tuning file"}


def _or_variable(told: dict[str, Any]) -> dict[str, Any]:
    """A property's schema, or a text with an environment variable in it."""
    kinds = [option.get("type") for option in told.get("anyOf", [told])]
    if "string" in kinds or not {"integer", "number", "boolean"} & set(kinds):
        return told
    kept: dict[str, Any] = {key: told[key] for key in ("default", "description", "title") if key in told}
    rest = {key: value for key, value in told.items() if key not in kept}
    return {**kept, "anyOf": [*rest.get("anyOf", [rest]), {"type": "string", "pattern": r"\$\{"}]}
