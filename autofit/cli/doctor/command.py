"""`autofit doctor`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from autofit.cli.doctor import show as checkup
from autofit.cli.exit import told


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what autofit sees here (devices, memory, cores, versions), what is wrong with it, and what to do about it.

    TensorFlow is imported and a tiny model tried, each in a process of its own, which takes some seconds. Exit code 1 if
    there is a problem, 0 otherwise; a warning is none.
    """
    from autofit.cli.doctor import diagnose  # only here: it makes the start of every command slower

    sys.path.insert(0, "")
    console = Console(highlight=False)
    with told():
        findings = checkup.show(diagnose.diagnose(), None if as_json else console, Console(stderr=True, highlight=False))
    if as_json:
        typer.echo(checkup.as_json(findings))
    else:
        console.print(f"\n{checkup.summarise(findings)}")
    if checkup.has_problem(findings):
        raise typer.Exit(1)
