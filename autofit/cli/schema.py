"""`autofit schema`."""

from __future__ import annotations

import json

import typer

from autofit.api.config import json_schema


def schema() -> None:
    """Print the JSON Schema of the YAML files, for completion and validation in editors.

    In an editor with the YAML language server, save the schema and name it in the first line of the YAML file:

    `autofit schema > autofit.schema.json`

    `# yaml-language-server: $schema=autofit.schema.json`
    """
    typer.echo(json.dumps(json_schema.schema(), indent=2))
