"""`autofit history`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from autofit.cli.exit import told
from autofit.records.units import counted
from autofit.report.console import history
from autofit.storage import urls
from autofit.tuning.request import PREFIX


def list_history(
    storage: Annotated[str | None, typer.Option(help="Where trials are kept; the default storage otherwise.")] = None,
    prune: Annotated[
        str | None,
        typer.Option(
            help="Forget tunes: those older than an age (12h, 30d, 8w), one by its name, or all.", metavar="WHICH"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what was tuned before, latest first: when, what, on what, and the answer; --prune forgets."""
    from autofit.storage import past_tunes as past  # only here: it loads Optuna

    console = Console(highlight=False)
    with told():
        tunes = past.past_tunes(storage, PREFIX)
        if prune is not None:
            names = history.matching(tunes, prune)
            past.forget(storage, names)
            typer.echo(f"removed {counted(len(names), 'tune')}", err=as_json)
            tunes = tuple(tune for tune in tunes if tune.name not in names)
        if as_json:
            typer.echo(history.as_json(tunes))
        elif prune is None:
            history.print_history(tunes, urls.url_of(storage), console)
