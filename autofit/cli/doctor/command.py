"""`autofit doctor`: print the findings as they arrive, or as JSON."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.cli.doctor.findings import Finding, Status
from autofit.cli.exit import reporting_errors
from autofit.cli.options import Json, Storage
from autofit.records.distribution import __version__
from autofit.records.events import Activity
from autofit.records.units import counted
from autofit.report.console.terminal import Terminal

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}
_STATUS_CELLS, _SUBJECT_CELLS = 7, 15
_JSON_VERSION = 1


def doctor(as_json: Json = False, storage: Storage = None) -> None:
    """Check this machine and its software, and print what is wrong and how to fix it.

    Trains a tiny model in its own process, which takes some seconds. With --storage, also checks that a database answers
    or that the lock of a journal works.

    Exit codes: 0 no problems (warnings are possible); 1 at least one problem.
    """
    from autofit.cli.doctor import diagnose  # imported late, because it is slow

    console = Terminal()
    with reporting_errors():
        findings = print_findings(diagnose.diagnose(storage), None if as_json else console, Terminal(stderr=True))
    count = Counter(finding.status for finding in findings)
    problems, warnings = count[Status.PROBLEM], count[Status.WARNING]
    if as_json:
        fields = {
            "version": _JSON_VERSION,
            "autofit": __version__,
            "problems": problems,
            "warnings": warnings,
            "findings": [asdict(finding) for finding in findings],
        }
        typer.echo(json.dumps(fields, indent=2))
    else:
        console.print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}.")
    if problems:
        raise typer.Exit(1)


def print_findings(events: Iterable[Finding | Activity], console: Console | None, progress: Console) -> tuple[Finding, ...]:
    """Print findings on `console` as they arrive, unless it is None, and return them; show activities on `progress`."""
    findings = []
    with contextlib.ExitStack() as spinner:
        for event in events:
            spinner.close()
            if isinstance(event, Activity):
                if progress.is_terminal:
                    spinner.enter_context(progress.status(f"{event.doing} …"))
                continue
            findings.append(event)
            if console is not None:
                console.print(_row(event))
    return tuple(findings)


def _row(finding: Finding) -> Table:
    """Return a row for a finding, with the remedy below the detail."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_STATUS_CELLS)
    grid.add_column(width=_SUBJECT_CELLS)
    grid.add_column(overflow="fold")
    status = Text(finding.status.value, style=_STYLES[finding.status])
    grid.add_row(status, Text(finding.subject, style="bold"), Text(finding.detail))
    if finding.remedy is not None:
        grid.add_row("", "", Text(f"→ {finding.remedy}"))
    return grid
