"""Print findings as they arrive, on a terminal or as plain lines; or as JSON."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.cli.doctor.findings import Finding, Status
from autofit.records.distribution import __version__
from autofit.records.events import Activity
from autofit.records.units import counted

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}
_STATUS_CELLS, _SUBJECT_CELLS = 7, 15
_JSON_VERSION = 1


def print_findings(events: Iterable[Finding | Activity], console: Console | None, progress: Console) -> tuple[Finding, ...]:
    """Print findings as they arrive, and return them.

    Args:
        events: findings, and the activities between them.
        console: prints the findings; None to print none.
        progress: shows the current activity if it is a terminal.
    """
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


def summary(findings: Iterable[Finding]) -> str:
    """The number of problems and warnings, in one line."""
    count = Counter(finding.status for finding in findings)
    return f"{counted(count[Status.PROBLEM], 'problem')}, {counted(count[Status.WARNING], 'warning')}."


def as_json(findings: Sequence[Finding]) -> str:
    """The findings as JSON text."""
    count = Counter(finding.status for finding in findings)
    fields = {
        "version": _JSON_VERSION,
        "autofit": __version__,
        "problems": count[Status.PROBLEM],
        "warnings": count[Status.WARNING],
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(fields, indent=2)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether a finding keeps autofit from working."""
    return any(finding.status is Status.PROBLEM for finding in findings)


def _row(finding: Finding) -> Table:
    """A row, with the remedy below the detail."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_STATUS_CELLS)
    grid.add_column(width=_SUBJECT_CELLS)
    grid.add_column(overflow="fold")
    status = Text(finding.status.value, style=_STYLES[finding.status])
    grid.add_row(status, Text(finding.subject, style="bold"), Text(finding.detail))
    if finding.remedy is not None:
        grid.add_row("", "", Text(f"→ {finding.remedy}"))
    return grid
