"""`autofit history`: past tunes as a list or as JSON, and the deletion of some of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from autofit.cli.exit import reporting_errors
from autofit.cli.options import Json, Storage
from autofit.errors import UsageError
from autofit.records.result import PastTune
from autofit.records.units import counted, format_rate
from autofit.report.console.terminal import Terminal
from autofit.storage import urls
from autofit.tuning.request import PREFIX

_UNIT_SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def history(
    storage: Storage = None,
    prune: Annotated[
        str | None,
        typer.Option(
            help="Tunes to delete: those older than an age (12h, 30d, 8w), one by its name, or all.", metavar="WHICH"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List earlier tunes, latest first, with date, workload, device and result; or delete some."""
    from autofit.storage import past_tunes as past  # imported late, because it loads Optuna

    with reporting_errors():
        tunes = past.past_tunes(storage, PREFIX)
        if prune is not None:
            names = matching(tunes, prune)
            past.forget(storage, names)
            typer.echo(f"deleted {counted(len(names), 'tune')}", err=as_json)
            tunes = tuple(tune for tune in tunes if tune.name not in names)
        if as_json:
            typer.echo(json.dumps([asdict(tune) for tune in tunes], indent=2))
        elif prune is None:
            print_history(tunes, urls.shown(storage), Terminal())


def print_history(tunes: Sequence[PastTune], storage: str, console: Console) -> None:
    """Print three lines per tune: time and title, machine, result. `storage` is the URL that holds the tunes."""
    if not tunes:
        console.print(f"no tunes in {storage}", soft_wrap=True)
    for tune in tunes:
        when = f"{datetime.fromtimestamp(tune.started_at):%Y-%m-%d %H:%M}"
        console.print(Text.assemble((when, "bold"), f"  {tune.title}"))
        result = tune.config or "no result yet"
        if tune.samples_per_second is not None:
            result += f": {format_rate(tune.samples_per_second)} samples/s"
        console.print(Padding(Text(f"on {tune.host}, {tune.device}; {tune.limits}"), (0, 0, 0, 4)))
        console.print(Padding(Text(f"{result} ({counted(tune.trials, 'trial')}, {tune.name})"), (0, 0, 0, 4)))


def matching(tunes: Sequence[PastTune], which: str) -> tuple[str, ...]:
    """Return the names of tunes: those older than `which` (`30d`), the one whose name starts with it, or all (`all`)."""
    if which == "all":
        return tuple(tune.name for tune in tunes)
    age = re.fullmatch(r"(\d+)([hdw])", which)
    if age:
        before = time.time() - int(age[1]) * _UNIT_SECONDS[age[2]]
        return tuple(tune.name for tune in tunes if tune.started_at < before)
    named = tuple(tune.name for tune in tunes if which and tune.name.startswith(which))
    if len(named) != 1:
        problem = "matches several names" if named else "is neither an age such as 30d, nor the name of a tune, nor all"
        raise UsageError(f"--prune: {which!r} {problem}; to list the names, run autofit history")
    return named
