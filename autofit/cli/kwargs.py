"""`autofit kwargs`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from autofit.cli.exit import reporting_errors
from autofit.cli.options import Result
from autofit.report import snippet
from autofit.storage import result_files


class Format(str, Enum):
    """Output format of `autofit kwargs`."""

    python = "python"
    json = "json"
    yaml = "yaml"


_WRITERS = {
    Format.python: snippet.kwargs_as_python,
    Format.json: snippet.kwargs_as_json,
    Format.yaml: snippet.kwargs_as_yaml,
}


def kwargs(
    result: Result, output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.python
) -> None:
    """Print the arguments of a result: data_kwargs for your data factory and fit_kwargs for fit."""
    with reporting_errors():
        typer.echo(_WRITERS[output_format](result_files.load_answer(result)))
