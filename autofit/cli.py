"""The command line: one small function a command."""

from __future__ import annotations

import sys
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from autofit import api, diagnosis
from autofit.errors import AutofitError, UsageError
from autofit.report import doctor as checkup
from autofit.report import estimate as estimates
from autofit.report import files, html, snippet
from autofit.report.console import Progress, print_trials, summarise

_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Format(str, Enum):
    """How `autofit kwargs` writes."""

    python = "python"
    json = "json"
    yaml = "yaml"


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


@app.command()
def tune(
    file: Annotated[Path, typer.Argument(help="YAML file that names the model, the data and the limits.")],
    output: Annotated[Path | None, typer.Option(help="Write the result to this file, as JSON.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Optuna storage URL, or path of an SQLite file, in which trials are kept.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the stored trials of this question.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, only the result.")] = False,
    launch: Annotated[str | None, typer.Option(help="How a trial gets its process: auto, fork or plain.")] = None,
) -> None:
    """Tune what FILE describes: search, confirm, and print the lines to paste.

    Trials are stored as they end: the same command goes on where an interrupted one stopped, and answers at once when it
    has the answer.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    progress = Progress(console, quiet=quiet)
    asked: dict[str, Any] = {"storage": storage, "launch": launch}
    overrides = {key: value for key, value in asked.items() if value is not None}
    try:
        if output is not None and output.is_dir():
            raise UsageError(f"--output: {output} is a folder; name a file in it")
        if output is not None and not output.parent.is_dir():
            raise UsageError(f"--output: there is no folder {output.parent}; make it first")
        result = api.tune_file(file, fresh=fresh, progress=progress, **overrides)
        summarise(result, console)
        if output is not None:
            result.save(output)
            console.print(f"\nwritten to {output}", markup=False, soft_wrap=True)
    except AutofitError as error:
        _fail(error)
    except KeyboardInterrupt:
        typer.echo(
            f"\nInterrupted; every process is ended. {progress.trials_kept} finished "
            f"{'trial is' if progress.trials_kept == 1 else 'trials are'} kept: "
            "the same command, without --fresh, goes on from there.",
            err=True,
        )
        raise typer.Exit(_INTERRUPTED) from None


@app.command()
def estimate(
    file: Annotated[Path, typer.Argument(help="YAML file that names the model, the data and the limits.")],
    batch_size: Annotated[str, typer.Option(help="Batch sizes, with commas between.", metavar="N,N,…")] = ",".join(
        str(size) for size in api.BATCH_SIZES
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory against batch size into this file, .png or .svg.")] = None,
) -> None:
    """Estimate the memory that training will need, nothing trained: by part, for each batch size, against the limits.

    The other knobs are those of the file's baseline, Keras's defaults otherwise.
    """
    sys.path.insert(0, "")
    try:
        sizes = _batch_sizes(batch_size)
        if plot is not None and plot.suffix not in estimates.PLOT_FORMATS:
            raise UsageError(f"--plot: {plot} must end in {' or '.join(estimates.PLOT_FORMATS)}")
        if plot is not None and not plot.parent.is_dir():
            raise UsageError(f"--plot: there is no folder {plot.parent}; make it first")
        shown = Progress(Console(stderr=True, highlight=False), quiet=as_json)
        found = api.estimate_file(file, batch_size=sizes, progress=shown)
        if as_json:
            typer.echo(estimates.as_json(found))
        else:
            estimates.print_estimate(found, Console(highlight=False))
        if plot is not None:
            estimates.plot(found, plot)
            typer.echo(f"drawn to {plot}", err=True)
    except AutofitError as error:
        _fail(error)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; every process is ended.", err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _batch_sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch-size: {text!r} is not allowed; write whole numbers with commas: 32,64,128") from None


@app.command()
def show(result: Annotated[Path, typer.Argument(help="A file that autofit tune --output wrote.")]) -> None:
    """Show a result: every trial, the choice, and the lines to paste."""
    console = Console(highlight=False)
    try:
        record = files.load_answer(result)
    except AutofitError as error:
        _fail(error)
    print_trials(record, console)
    summarise(record, console)


@app.command()
def kwargs(
    result: Annotated[Path, typer.Argument(help="A file that autofit tune --output wrote.")],
    form: Annotated[Format, typer.Option("--format", help="What to write them as.")] = Format.python,
) -> None:
    """Print the arguments of a result: data_kwargs for the data factory, fit_kwargs for fit."""
    writers = {
        Format.python: snippet.kwargs_as_python,
        Format.json: files.kwargs_as_json,
        Format.yaml: files.kwargs_as_yaml,
    }
    try:
        typer.echo(writers[form](files.load_answer(result)))
    except AutofitError as error:
        _fail(error)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what autofit sees here (devices, memory, cores, versions), what is wrong with it, and what to do about it.

    TensorFlow is imported and a tiny model tried, each in a process of its own, which takes some seconds. Exit code 1 if
    there is a problem, 0 otherwise; a warning is none.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    try:
        findings = checkup.show(diagnosis.diagnose(), None if as_json else console, Console(stderr=True, highlight=False))
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; every process is ended.", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        typer.echo(checkup.as_json(findings))
    else:
        console.print(f"\n{checkup.summarise(findings)}")
    if checkup.has_problem(findings):
        raise typer.Exit(1)


@app.command()
def report(
    result: Annotated[Path, typer.Argument(help="A file that autofit tune --output wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; beside the result, as .html, if not given.")
    ] = None,
) -> None:
    """Draw a result as one HTML page: the answer, its plots, every trial. It opens from disk and loads nothing."""
    page = result.with_suffix(".html") if output is None else output
    try:
        if page.is_dir():
            raise UsageError(f"--output: {page} is a folder; name a file in it")
        if page.resolve() == result.resolve():
            raise UsageError(f"--output: {page} is the result itself; name another file")
        html.save(files.load(result), page)
    except AutofitError as error:
        _fail(error)
    typer.echo(f"written to {page}")


def _fail(error: AutofitError) -> NoReturn:
    typer.echo(f"autofit: {error}", err=True)
    raise typer.Exit(error.exit_code) from None
