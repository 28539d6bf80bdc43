"""`autofit report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofit.cli.exit import check_place, told
from autofit.cli.options import _ResultOrSweep
from autofit.errors import UsageError
from autofit.storage import sweep_files


def report(
    result: _ResultOrSweep,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; beside the result, as .html, if not given.")
    ] = None,
) -> None:
    """Draw a result or a sweep as one HTML page: the answer, its plots, every trial. It opens from disk, loads nothing."""
    from autofit.report.html import page as html  # only here: it makes the start of every command slower

    page = result.with_suffix(".html") if output is None else output
    with told():
        check_place("--output", page)
        if page.resolve() == result.resolve():
            raise UsageError(f"--output: {page} is the result itself; name another file")
        html.save(sweep_files.load(result), page)
        typer.echo(f"written to {page}")
