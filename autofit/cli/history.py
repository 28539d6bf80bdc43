"""`autofit history`."""

from __future__ import annotations

from typing import Annotated

import typer

from autofit.cli.exit import reporting_errors
from autofit.cli.options import Json, Storage
from autofit.records.units import counted
from autofit.report.console import history as console_history
from autofit.report.console.terminal import Terminal
from autofit.storage import urls
from autofit.tuning.request import PREFIX


def history(
    storage: Storage = None,
    prune: Annotated[
        str | None,
        typer.Option(help="Delete tunes older than an age (12h, 30d, 8w), one tune by name, or all.", metavar="WHICH"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List earlier tunes, latest first, with date, workload, device and result; or delete them."""
    from autofit.storage import past_tunes as past  # late: loads Optuna

    with reporting_errors():
        tunes = past.past_tunes(storage, PREFIX)
        if prune is not None:
            names = console_history.matching(tunes, prune)
            past.forget(storage, names)
            typer.echo(f"deleted {counted(len(names), 'tune')}", err=as_json)
            tunes = tuple(tune for tune in tunes if tune.name not in names)
        if as_json:
            typer.echo(console_history.as_json(tunes))
        elif prune is None:
            console_history.print_history(tunes, urls.shown(storage), Terminal())
