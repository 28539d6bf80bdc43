"""`autofit doctor`."""

from __future__ import annotations

import typer

from autofit.cli.doctor import printing
from autofit.cli.exit import reporting_errors
from autofit.cli.options import Json, Storage
from autofit.report.console.terminal import Terminal


def doctor(as_json: Json = False, storage: Storage = None) -> None:
    """Check devices, memory, cores and versions of this machine, and print what is wrong and how to fix it.

    Imports TensorFlow and trains a tiny model, each in its own process, which takes some seconds. With --storage, checks
    that storage, too: a server by connecting to it, a journal by two processes that lock it in turns. Exit code 1 if there
    is a problem; 0 otherwise, with warnings too.
    """
    from autofit.cli.doctor import diagnose  # late: slow to import

    console = Terminal()
    with reporting_errors():
        events = diagnose.diagnose(storage)
        findings = printing.print_findings(events, None if as_json else console, Terminal(stderr=True))
    if as_json:
        typer.echo(printing.as_json(findings))
    else:
        console.print(f"\n{printing.summary(findings)}")
    if printing.has_problem(findings):
        raise typer.Exit(1)
