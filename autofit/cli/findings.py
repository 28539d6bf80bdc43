"""The findings of `autofit doctor` and `autofit verify`, and how they are printed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial

import typer
from rich.table import Table
from rich.text import Text

from autofit.records import __version__
from autofit.records.events import Activity
from autofit.records.units import counted
from autofit.report.console.terminal import Terminal


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    status: str  # "ok", "warning" (autofit may be slow or its results unreliable) or "problem" (it does not work)
    subject: str
    detail: str
    remedy: str | None = None  # None if and only if the status is "ok"


ok, warning, problem = (partial(Finding, status) for status in ("ok", "warning", "problem"))

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_STATUS_CELLS, _SUBJECT_CELLS = 7, 15


def print_findings(events: Iterable[Finding | Activity], *, as_json: bool) -> tuple[Finding, ...]:
    """Print findings as they arrive, or as JSON, and return them; raise typer.Exit with code 1 if one is a problem."""
    console, progress, findings = Terminal(), Terminal(stderr=True), list[Finding]()
    with contextlib.ExitStack() as spinner:
        for event in events:
            spinner.close()
            if isinstance(event, Finding):
                findings.append(event)
                if not as_json:
                    console.print(_row(event))
            elif progress.is_terminal:
                spinner.enter_context(progress.status(f"{event.doing} …"))
    problems, warnings = (sum(finding.status == status for finding in findings) for status in ("problem", "warning"))
    if as_json:
        summary = {"version": 1, "autofit": __version__, "problems": problems, "warnings": warnings}
        typer.echo(json.dumps({**summary, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        console.print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}.")
    if problems:
        raise typer.Exit(1)
    return tuple(findings)


def _row(finding: Finding) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_STATUS_CELLS)
    grid.add_column(width=_SUBJECT_CELLS)
    grid.add_column(overflow="fold")
    grid.add_row(
        Text(finding.status, style=_STYLES[finding.status]), Text(finding.subject, style="bold"), Text(finding.detail)
    )
    if finding.remedy is not None:
        grid.add_row("", "", Text(f"→ {finding.remedy}"))
    return grid
