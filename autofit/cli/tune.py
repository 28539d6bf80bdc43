"""Commands that ask: what is fastest, what fits, whether it could be asked at all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autofit import api
from autofit.cli.exit import check_place, told
from autofit.cli.options import _File, _given, _Launch, _Quiet, _Storage
from autofit.errors import AutofitError
from autofit.records.result import FailedTune
from autofit.records.units import counted
from autofit.report.console.progress import Progress
from autofit.report.console.summary import summarise
from autofit.storage import result_files


def tune(
    file: _File,
    output: Annotated[Path | None, typer.Option(help="Write the result to this file, as JSON.")] = None,
    storage: _Storage = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the stored trials of this question.")] = False,
    quiet: _Quiet = False,
    launch: _Launch = None,
) -> None:
    """Tune what FILE describes: search, confirm, and print the lines to paste.

    Trials are stored as they end: the same command goes on where an interrupted one stopped, and answers at once when it
    has the answer.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    progress = Progress(console, quiet=quiet)

    def kept() -> str:
        kept = counted(progress.trials_kept, "finished trial")
        return f"every process is ended. Kept: {kept}; the same command, without --fresh, goes on from there."

    with told(kept):
        check_place("--output", output)
        try:
            result = api.tune_file(file, fresh=fresh, progress=progress, **_given(storage=storage, launch=launch))
        except AutofitError as error:
            if output is not None and isinstance(error.seen, FailedTune):
                result_files.save(error.seen, output)
                typer.echo(f"what was seen is written to {output}; look at it with: autofit report {output}\n", err=True)
            raise
        summarise(result, console)
        if output is not None:
            result.save(output)
            console.print(f"\nwritten to {output}", markup=False, soft_wrap=True)
