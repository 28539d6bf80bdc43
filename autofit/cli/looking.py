"""Commands that look: at a result, at what was asked before, at this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autofit import places
from autofit.cli import ending
from autofit.errors import UsageError
from autofit.question import PREFIX
from autofit.report import doctor as checkup
from autofit.report import files, history, snippet, sweeps
from autofit.report.console import print_trials, summarise
from autofit.results import SweepRecord

_Result = Annotated[Path, typer.Argument(help="A file that autofit tune --output wrote.")]
_ResultOrSweep = Annotated[Path, typer.Argument(help="A file that autofit tune --output or autofit sweep wrote.")]


class Format(str, Enum):
    """How `autofit kwargs` writes."""

    python = "python"
    json = "json"
    yaml = "yaml"


def show(result: _ResultOrSweep) -> None:
    """Show a result: every trial, the choice, and the lines to paste; or the table of a sweep."""
    console = Console(highlight=False)
    with ending.told():
        record = sweeps.load(result)
        if isinstance(record, SweepRecord):
            sweeps.print_sweep(record, console)
            return
        found = files.answered(record, result)
        print_trials(found, console)
        summarise(found, console)


def kwargs(
    result: _Result, form: Annotated[Format, typer.Option("--format", help="What to write them as.")] = Format.python
) -> None:
    """Print the arguments of a result: data_kwargs for the data factory, fit_kwargs for fit."""
    writers = {
        Format.python: snippet.kwargs_as_python,
        Format.json: files.kwargs_as_json,
        Format.yaml: files.kwargs_as_yaml,
    }
    with ending.told():
        typer.echo(writers[form](files.load_answer(result)))


def report(
    result: _ResultOrSweep,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; beside the result, as .html, if not given.")
    ] = None,
) -> None:
    """Draw a result or a sweep as one HTML page: the answer, its plots, every trial. It opens from disk, loads nothing."""
    from autofit.report import html  # only here: it makes the start of every command slower

    page = result.with_suffix(".html") if output is None else output
    with ending.told():
        ending.check_place("--output", page)
        if page.resolve() == result.resolve():
            raise UsageError(f"--output: {page} is the result itself; name another file")
        html.save(sweeps.load(result), page)
        typer.echo(f"written to {page}")


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
    from autofit import history as past  # only here: it loads Optuna

    console = Console(highlight=False)
    with ending.told():
        tunes = past.past_tunes(storage, PREFIX)
        if prune is not None:
            names = history.matching(tunes, prune)
            past.forget(storage, names)
            typer.echo(f"{len(names)} {'tune is' if len(names) == 1 else 'tunes are'} forgotten", err=as_json)
            tunes = tuple(tune for tune in tunes if tune.name not in names)
        if as_json:
            typer.echo(history.as_json(tunes))
        elif prune is None:
            history.print_history(tunes, places.url_of(storage), console)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what autofit sees here (devices, memory, cores, versions), what is wrong with it, and what to do about it.

    TensorFlow is imported and a tiny model tried, each in a process of its own, which takes some seconds. Exit code 1 if
    there is a problem, 0 otherwise; a warning is none.
    """
    from autofit import diagnosis  # only here: it makes the start of every command slower

    sys.path.insert(0, "")
    console = Console(highlight=False)
    with ending.told():
        findings = checkup.show(diagnosis.diagnose(), None if as_json else console, Console(stderr=True, highlight=False))
    if as_json:
        typer.echo(checkup.as_json(findings))
    else:
        console.print(f"\n{checkup.summarise(findings)}")
    if checkup.has_problem(findings):
        raise typer.Exit(1)


COMMANDS: dict[str, Callable[..., None]] = {
    "show": show,
    "kwargs": kwargs,
    "report": report,
    "history": list_history,
    "doctor": doctor,
}
