"""`autofit tune` and `autofit sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofit import api
from autofit.api.config import load
from autofit.api.result import SweepResult
from autofit.cli.exit import reporting_errors, require_writable
from autofit.cli.options import File, Launch, Quiet, Storage, Wait, overrides
from autofit.errors import TuneError
from autofit.records.units import counted
from autofit.report.console.progress import Progress
from autofit.report.console.tables import summarise, sweep_table
from autofit.report.console.terminal import Terminal
from autofit.storage import result_files

_OPTIONS = {"executor": "--on", "ship": "--ship", "only": "--only"}


def tune(
    file: File,
    output: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    storage: Storage = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the stored trials of this tune first.")] = False,
    wait: Wait = True,
    quiet: Quiet = False,
    launch: Launch = None,
) -> None:
    """Find the fastest configuration for the workload in FILE, and print the lines to paste.

    Trials are stored as they end. Run the same command again to resume, or to print the result if it is stored already.
    """
    console = Terminal()
    progress = Progress(console, quiet=quiet)
    with reporting_errors(lambda: f"Kept {counted(progress.trials_kept, 'finished trial')}"):
        require_writable("--output", output)
        try:
            given = overrides(storage=storage, launch=launch, fresh=fresh, wait=wait)
            with load.placing_errors(file, given):
                result = api.tune(**load.overridden(load.load(file), given), progress=progress)
        except TuneError as error:
            if output is not None and error.tune is not None:
                result_files.save(error.tune, output)
                typer.echo(f"the failed tune is written to {output}; to view it, run autofit report {output}\n", err=True)
            raise
        summarise(result, console)
        if output is not None:
            result.save(output)
            console.print(f"\nwritten to {output}", markup=False, soft_wrap=True)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with a matrix of the values to vary.")],
    output: Annotated[Path, typer.Option(help="Write all results to this JSON file and a CSV file next to it.")] = Path(
        "sweep.json"
    ),
    only: Annotated[
        str | None,
        typer.Option(
            metavar="K/N", help="Tune a part of the cells: every N-th from the K-th on. Each part writes a file of its own."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(help="Where to tune: local, ray (a cluster on this machine or at RAY_ADDRESS) or ray://HOST:PORT."),
    ] = "local",
    ship: Annotated[
        Path | None,
        typer.Option(help="Folder with your code that Ray copies to each host; not needed if the hosts share it."),
    ] = None,
    storage: Storage = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Tune every cell again, or resume an earlier run.")
    ] = False,
    wait: Wait = True,
    quiet: Quiet = False,
    launch: Launch = None,
) -> None:
    """Tune every cell of the matrix in FILE, and print a table with the fastest configuration of each.

    The table also has a row for each failed cell. Results are saved after every cell. Run the same command again to resume.

    Exit codes: 0 at least one cell has a result; 1 no cell has one; 2 wrong arguments, YAML or storage; 130 interrupted.
    """
    console = Terminal()
    ended = 0

    def save(swept: SweepResult) -> None:
        nonlocal ended
        ended = sum(cell.outcome != "waiting" for cell in swept.cells)
        swept.save(output)

    def kept() -> str:
        return f"{output} has {counted(ended, 'finished cell')}" if ended else "Finished trials are kept"

    with reporting_errors(kept, _OPTIONS):
        if only is not None:
            output = output.with_stem(f"{output.stem}-{only.replace('/', '-of-')}")
        table = result_files.csv_path(output)
        for path in (output, table):
            require_writable("--output", path)
        swept = api.sweep_file(
            file,
            overrides(storage=storage, launch=launch, fresh=fresh, wait=wait),
            executor=on,
            ship=ship,
            only=only,
            progress=Progress(console, quiet=quiet),
            save=save,
        )
        console.print()
        console.print(sweep_table(swept))
        console.print(f"\nwritten to {output} and {table}", markup=False, soft_wrap=True)
        if not any(cell.outcome == "ok" for cell in swept.cells):
            raise typer.Exit(1)
