"""The command line: one small function a command."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from autofit.cli.check import check
from autofit.cli.doctor.command import doctor
from autofit.cli.estimate import estimate
from autofit.cli.history import list_history
from autofit.cli.kwargs import kwargs
from autofit.cli.report import report
from autofit.cli.schema import schema
from autofit.cli.show import show
from autofit.cli.sweep import sweep
from autofit.cli.tune import tune

COMMANDS: dict[str, Callable[..., None]] = {
    "tune": tune,
    "sweep": sweep,
    "estimate": estimate,
    "check": check,
    "schema": schema,
    "show": show,
    "kwargs": kwargs,
    "report": report,
    "history": list_history,
    "doctor": doctor,
}
# in the order in which --help lists them

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False, pretty_exceptions_enable=False)
for name, command in COMMANDS.items():
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
