"""`autofit tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofit import api
from autofit.cli.exit import reporting_errors, require_writable
from autofit.cli.options import File, Launch, Quiet, Storage, Wait, overrides
from autofit.errors import TuneError
from autofit.records.units import counted
from autofit.report.console.progress import Progress
from autofit.report.console.summary import summarise
from autofit.report.console.terminal import Terminal
from autofit.storage import result_files


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

    Trials are stored as they end: run the same command again to resume, or to print the stored result at once.
    """
    console = Terminal()
    progress = Progress(console, quiet=quiet)

    def kept() -> str:
        return f"{counted(progress.trials_kept, 'finished trial')} kept"

    with reporting_errors(kept):
        require_writable("--output", output)
        try:
            result = api.tune_file(
                file, fresh=fresh, wait=wait, progress=progress, **overrides(storage=storage, launch=launch)
            )
        except TuneError as error:
            if output is not None and error.tune is not None:
                result_files.save(error.tune, output)
                typer.echo(f"the failed tune is written to {output}; to view it, run autofit report {output}\n", err=True)
            raise
        summarise(result, console)
        if output is not None:
            result.save(output)
            console.print(f"\nwritten to {output}", markup=False, soft_wrap=True)
