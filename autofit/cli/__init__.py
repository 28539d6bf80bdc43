"""The command line: one small function a command."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from autofit.cli import asking, looking

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False, pretty_exceptions_enable=False)
for name, command in {**asking.COMMANDS, **looking.COMMANDS}.items():
    app.command(name)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autofit {version('autofit')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest Keras fit configuration that fits in memory.

    Exit codes: 0 found; 1 your code failed, or nothing fits; 2 wrong usage or YAML; 130 interrupted.
    """
