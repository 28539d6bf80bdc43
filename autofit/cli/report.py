"""`autofit report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofit.cli.exit import reporting_errors, require_writable
from autofit.cli.options import ResultOrSweep
from autofit.errors import UsageError
from autofit.storage import sweep_files


def report(
    result: ResultOrSweep,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write; by default RESULT with the suffix .html.")
    ] = None,
) -> None:
    """Write a result or a sweep as one self-contained HTML page with the choice, plots and every trial."""
    from autofit.report.html import page as html  # late: slow to import

    page = result.with_suffix(".html") if output is None else output
    with reporting_errors():
        require_writable("--output", page)
        if page.resolve() == result.resolve():
            raise UsageError(f"{page} is the result itself; name another file", key="--output")
        html.save(sweep_files.load(result), page)
        typer.echo(f"written to {page}")
