"""`autofit schema`."""

from __future__ import annotations

import json

import typer

from autofit import api
from autofit.api.config import json_schema
from autofit.api.config.docstrings import arguments_of


def schema() -> None:
    """Print the JSON Schema of the YAML files, with which editors complete and check them.

    In an editor with the YAML language server: autofit schema > autofit.schema.json, and as the first line of the file
    # yaml-language-server: $schema=autofit.schema.json
    """
    typer.echo(json.dumps(json_schema.schema({**arguments_of(api.sweep), **arguments_of(api.tune)}), indent=2))
