"""`autofit estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofit import api
from autofit.cli.exit import reporting_errors, require_writable
from autofit.cli.options import File
from autofit.errors import UsageError
from autofit.report.console import estimate as estimates
from autofit.report.console.progress import Progress
from autofit.report.console.terminal import Terminal

_SIZES = ",".join(map(str, api.BATCH_SIZES))


def estimate(
    file: File,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, separated by commas.", metavar="N,N,…")] = _SIZES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sizes in bytes.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of memory against batch size to this HTML file.")] = None,
) -> None:
    """Estimate the memory that training takes at each batch size, without training.

    Prints the memory by part, and compares it with the limits. Other knobs take their values from the baseline in FILE,
    or Keras's defaults.
    """
    with reporting_errors():
        sizes = _batch_sizes(batch_size)
        if plot is not None and plot.suffix != ".html":
            raise UsageError(f"{plot} must end in .html", key="--plot")
        require_writable("--plot", plot)
        progress = Progress(Terminal(stderr=True), quiet=as_json)
        result = api.estimate_file(file, batch_size=sizes, progress=progress)
        if as_json:
            typer.echo(estimates.as_json(result))
        else:
            estimates.print_estimate(result, Terminal())
        if plot is not None:
            from autofit.report.html import page  # late: slow to import

            page.save(result, plot)
            typer.echo(f"written to {plot}", err=True)


def _batch_sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        problem = f"{text!r} is not allowed; separate whole numbers by commas: 32,64,128"
        raise UsageError(problem, key="--batch-size") from None
