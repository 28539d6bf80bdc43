"""Commands that ask: what is fastest, what fits, whether it could be asked at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from autofit import api, config
from autofit.cli import ending
from autofit.docstrings import arguments_of
from autofit.errors import AutofitError, UsageError
from autofit.report import estimate as estimates
from autofit.report import files, sweeps
from autofit.report.console import Progress, summarise
from autofit.results import Unanswered
from autofit.returned import SweepResult

_SIZES = ",".join(map(str, api.BATCH_SIZES))
_File = Annotated[Path, typer.Argument(help="YAML file that names the model, the data and the limits.")]
_Storage = Annotated[
    str | None,
    typer.Option(
        help="Where trials are kept: sqlite:///FILE, postgresql://…, journal:FILE, or the path of an SQLite file."
    ),
]
_Launch = Annotated[str | None, typer.Option(help="How a trial gets its process: auto, fork or plain.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress, only the result.")]


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
        count = progress.trials_kept
        return (
            f"every process is ended. {count} finished {'trial is' if count == 1 else 'trials are'} kept: "
            "the same command, without --fresh, goes on from there."
        )

    with ending.told(kept):
        ending.check_place("--output", output)
        try:
            result = api.tune_file(file, fresh=fresh, progress=progress, **_given(storage=storage, launch=launch))
        except AutofitError as error:
            if output is not None and isinstance(error.seen, Unanswered):
                files.save(error.seen, output)
                typer.echo(f"what was seen is written to {output}; look at it with: autofit report {output}\n", err=True)
            raise
        summarise(result, console)
        if output is not None:
            result.save(output)
            console.print(f"\nwritten to {output}", markup=False, soft_wrap=True)


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
        return (
            f"every process is ended. {ended} finished {'cell is' if ended == 1 else 'cells are'} in {output}: "
            "the same command, without --fresh, goes on from there."
        )

    with ending.told(kept):
        for path in (output, sweeps.csv_path(output)):
            ending.check_place("--output", path)
        swept = api.sweep_file(
            file,
            jobs=_jobs(jobs),
            fresh=fresh,
            progress=Progress(console, quiet=quiet),
            save=save,
            **_given(storage=storage, launch=launch),
        )
        console.print()
        sweeps.print_sweep(swept, console)
        console.print(f"\nwritten to {output} and {sweeps.csv_path(output)}", markup=False, soft_wrap=True)
        if not any(cell.outcome == "ok" for cell in swept.cells):
            raise typer.Exit(1)


def estimate(
    file: _File,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, with commas between.", metavar="N,N,…")] = _SIZES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory against batch size into this file, .png or .svg.")] = None,
) -> None:
    """Estimate the memory that training will need, nothing trained: by part, for each batch size, against the limits.

    The other knobs are those of the file's baseline, Keras's defaults otherwise.
    """
    sys.path.insert(0, "")
    with ending.told():
        sizes = _batch_sizes(batch_size)
        if plot is not None and plot.suffix not in estimates.PLOT_FORMATS:
            raise UsageError(f"--plot: {plot} must end in {' or '.join(estimates.PLOT_FORMATS)}")
        ending.check_place("--plot", plot)
        shown = Progress(Console(stderr=True, highlight=False), quiet=as_json)
        found = api.estimate_file(file, batch_size=sizes, progress=shown)
        if as_json:
            typer.echo(estimates.as_json(found))
        else:
            estimates.print_estimate(found, Console(highlight=False))
        if plot is not None:
            estimates.plot(found, plot)
            typer.echo(f"drawn to {plot}", err=True)


def check(file: _File, storage: _Storage = None) -> None:
    """Check FILE: every key, every name in it, limits and device; functions are imported, none is called.

    Of a sweep every cell is checked.
    """
    sys.path.insert(0, "")
    console = Console(highlight=False)
    with ending.told():
        cells = api.check_file(file, **_given(storage=storage))
        for number, (values, found) in enumerate(cells, 1):
            if values:
                console.print(f"cell {number} of {len(cells)}: {sweeps.told(values)}", style="bold", markup=False)
            sweeps.print_checked(found, console)
        console.print(f"\n{file} is in order; nothing was run", markup=False, soft_wrap=True)


def schema() -> None:
    """Print the JSON Schema of the YAML files, with which editors complete and check them.

    In an editor with the YAML language server: autofit schema > autofit.schema.json, and as the first line of the file
    # yaml-language-server: $schema=autofit.schema.json
    """
    typer.echo(json.dumps(config.schema({**arguments_of(api.sweep), **arguments_of(api.tune)}), indent=2))


COMMANDS: dict[str, Callable[..., None]] = {
    "tune": tune,
    "sweep": sweep,
    "estimate": estimate,
    "check": check,
    "schema": schema,
}


def _given(**options: Any) -> dict[str, Any]:
    """The options that take precedence over the file."""
    return {key: value for key, value in options.items() if value is not None}


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if text.isdigit() and int(text):
        return int(text)
    raise UsageError(f"--jobs: {text!r} is not allowed; write a whole number, or auto")


def _batch_sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch-size: {text!r} is not allowed; write whole numbers with commas: 32,64,128") from None
