"""The command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from autofit.cli.check import check
from autofit.cli.commands import (
    estimate,
    kwargs,
    report,
    schema,
    show,
    sweep,
    tune,
    why,
)
from autofit.cli.doctor import doctor
from autofit.cli.verify import verify
from autofit.records import __version__

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)
# as in --help
for command in (
    tune,
    why,
    sweep,
    check,
    estimate,
    report,
    kwargs,
    show,
    schema,
    doctor,
    verify,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest Keras fit configuration that fits in memory.

    Exit codes: 0 success; 1 your code failed or nothing fits; 2 wrong arguments, YAML or storage;
    130 interrupted.
    """
    if show_version:
        typer.echo(f"autofit {__version__}")
        raise typer.Exit
    # the user's modules in the working directory; last, so that none hides a library
    sys.path.append("")
