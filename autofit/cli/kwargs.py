"""`autofit kwargs`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from autofit.cli.exit import told
from autofit.cli.options import _Result
from autofit.report import snippet
from autofit.storage import result_files


class Format(str, Enum):
    """How `autofit kwargs` writes."""

    python = "python"
    json = "json"
    yaml = "yaml"


def kwargs(
    result: _Result, form: Annotated[Format, typer.Option("--format", help="What to write them as.")] = Format.python
) -> None:
    """Print the arguments of a result: data_kwargs for the data factory, fit_kwargs for fit."""
    writers = {
        Format.python: snippet.kwargs_as_python,
        Format.json: snippet.kwargs_as_json,
        Format.yaml: snippet.kwargs_as_yaml,
    }
    with told():
        typer.echo(writers[form](result_files.load_answer(result)))
