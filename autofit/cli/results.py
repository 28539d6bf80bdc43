"""`autofit show`, `autofit kwargs` and `autofit report`: commands on saved results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from autofit.cli.exit import reporting_errors, require_writable
from autofit.cli.options import Json, Result, ResultOrSweep, Storage
from autofit.errors import UsageError
from autofit.records.sweep import SweepRecord
from autofit.report import snippet
from autofit.report.console.tables import summarise, sweep_table, trial_table
from autofit.report.console.terminal import Terminal
from autofit.report.html import page
from autofit.storage import result_files


def show(
    result: ResultOrSweep,
    as_json: Json = False,
    failed: Annotated[
        Literal["host", "device"] | None, typer.Option(help="The memory that your training ran out of with this result.")
    ] = None,
    storage: Storage = None,
) -> None:
    """Show a result (every trial, the choice and the lines to paste) or the table of a sweep.

    With --json, print the whole record with every reading instead. With --failed, store that the configuration ran out of
    memory in your own training, so that the next tune of the same file chooses another one; --storage is that of the tune.
    """
    console = Terminal()
    with reporting_errors(options={"storage": "--storage"}):
        record = result_files.load(result)
        if failed is not None:
            from autofit.storage.study import mark_failed  # loads Optuna, which takes a second

            mark_failed(answer := result_files.answered(record, result), failed, storage)
            typer.echo(f"{answer.config} counts as out of {failed} memory; the next tune chooses another configuration")
            return
        if as_json:
            typer.echo(json.dumps(result_files.encode(record), indent=2))
            return
        if isinstance(record, SweepRecord):
            console.print(sweep_table(record))
            return
        answer = result_files.answered(record, result)
        console.print(trial_table(answer.trials, answer.limits))
        summarise(answer, console)


def kwargs(
    result: Result,
    output_format: Annotated[Literal["python", "json", "yaml"], typer.Option("--format", help="Output format.")] = "python",
    same_batch: Annotated[
        bool, typer.Option("--same-batch", help="Print those of the answer at your own batch size.")
    ] = False,
) -> None:
    """Print the arguments of a result: data_kwargs for your data factory and fit_kwargs for fit."""
    with reporting_errors():
        answered = result_files.answered(result_files.load(result), result)
        record = answered.same_batch if same_batch else answered.fastest
        if record is None:
            raise UsageError(
                f"{result} has no answer at your own batch size: no configuration of it fits", key="--same-batch"
            )
        if output_format == "python":
            typer.echo(snippet.kwargs_as_python(record))
        elif output_format == "json":
            typer.echo(json.dumps(snippet.kwargs_of(record), indent=2))
        else:
            typer.echo(yaml.safe_dump(snippet.kwargs_of(record), sort_keys=False).rstrip())


def report(
    result: ResultOrSweep,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write; by default RESULT with the suffix .html.")
    ] = None,
) -> None:
    """Write a result or a sweep as one self-contained HTML page with the choice, plots and every trial."""
    path = result.with_suffix(".html") if output is None else output
    with reporting_errors():
        require_writable("--output", path)
        if path.resolve() == result.resolve():
            raise UsageError(f"{path} is the result itself; name another file", key="--output")
        page.save(result_files.load(result), path)
        typer.echo(f"written to {path}")
