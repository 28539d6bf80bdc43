"""`autofit estimate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autofit import api
from autofit.cli.exit import check_place, told
from autofit.cli.options import _File
from autofit.errors import UsageError
from autofit.report.console import estimate as estimates
from autofit.report.console.progress import Progress

_SIZES = ",".join(map(str, api.BATCH_SIZES))


def estimate(
    file: _File,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, with commas between.", metavar="N,N,…")] = _SIZES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory against batch size as a page, memory.html.")] = None,
) -> None:
    """Estimate the memory that training will need, nothing trained: by part, for each batch size, against the limits.

    The other knobs are those of the file's baseline, Keras's defaults otherwise.
    """
    sys.path.insert(0, "")
    with told():
        sizes = _batch_sizes(batch_size)
        if plot is not None and plot.suffix != ".html":
            raise UsageError(f"--plot: {plot} must end in .html")
        check_place("--plot", plot)
        shown = Progress(Console(stderr=True, highlight=False), quiet=as_json)
        found = api.estimate_file(file, batch_size=sizes, progress=shown)
        if as_json:
            typer.echo(estimates.as_json(found))
        else:
            estimates.print_estimate(found, Console(highlight=False))
        if plot is not None:
            from autofit.report.html import page  # loads slowly, and only a plot needs it

            page.save(found, plot)
            typer.echo(f"written to {plot}", err=True)


def _batch_sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch-size: {text!r} is not allowed; write whole numbers with commas: 32,64,128") from None
