"""`autofit sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autofit import api
from autofit.api.result import SweepResult
from autofit.cli.exit import check_place, told
from autofit.cli.options import _given, _Launch, _Quiet, _Storage
from autofit.errors import UsageError
from autofit.records.units import counted
from autofit.report.console.progress import Progress
from autofit.report.console.sweep import print_sweep
from autofit.storage import sweep_files


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file with a matrix: that says what is varied.")],
    output: Annotated[
        Path, typer.Option(help="Write all results to this file, as JSON, and the table beside it, as CSV.")
    ] = Path("sweep.json"),
    jobs: Annotated[
        str, typer.Option(help="Most cells at the same time, each on a GPU of its own: a number, or auto.")
    ] = "auto",
    storage: _Storage = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Ask every cell anew, or go on where an earlier run stopped.")
    ] = False,
    quiet: _Quiet = False,
    launch: _Launch = None,
) -> None:
    """Tune every cell of the matrix in FILE, and print a table of the fastest configuration of each.

    A cell that fails or does not fit is a row like any other. The results are written whenever a cell has ended, and the
    same command goes on where an interrupted one stopped.

    Exit codes: 0 at least one cell has an answer; 1 none has; 2 wrong usage or YAML; 130 interrupted.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    ended = 0

    def save(swept: SweepResult) -> None:
        nonlocal ended
        ended = sum(cell.outcome != "waiting" for cell in swept.cells)
        swept.save(output)

    def kept() -> str:
        if not ended:
            return "every process is ended. Finished trials are kept: the same command, without --fresh, goes on."
        cells = counted(ended, "finished cell")
        return f"every process is ended. {output} has {cells}; the same command, without --fresh, goes on from there."

    with told(kept):
        for path in (output, sweep_files.csv_path(output)):
            check_place("--output", path)
        swept = api.sweep_file(
            file,
            jobs=_jobs(jobs),
            fresh=fresh,
            progress=Progress(console, quiet=quiet),
            save=save,
            **_given(storage=storage, launch=launch),
        )
        console.print()
        print_sweep(swept, console)
        console.print(f"\nwritten to {output} and {sweep_files.csv_path(output)}", markup=False, soft_wrap=True)
        if not any(cell.outcome == "ok" for cell in swept.cells):
            raise typer.Exit(1)


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if text.isdigit() and int(text):
        return int(text)
    raise UsageError(f"--jobs: {text!r} is not allowed; write a whole number, or auto")
