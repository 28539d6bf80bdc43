"""The command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from autofit.cli.commands import check, estimate, kwargs, report, schema, show, sweep, tune
from autofit.cli.doctor import doctor
from autofit.cli.init import init
from autofit.cli.verify import verify
from autofit.records import __version__

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False, pretty_exceptions_enable=False)
for command in (init, tune, sweep, check, estimate, report, kwargs, show, schema, doctor, verify):  # as in --help
    app.command()(command)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"autofit {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest Keras fit configuration that fits in memory.

    Exit codes: 0 success; 1 your code failed or nothing fits; 2 wrong arguments, YAML or storage; 130 interrupted.
    """
    sys.path.append("")  # the user's modules in the working directory; last, so that none hides a library
