"""Findings as they come, on a terminal or as plain lines, and as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.cli.doctor.findings import Finding, Status
from autofit.records.events import Activity
from autofit.records.units import counted

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}
_STATUS_CELLS, _SUBJECT_CELLS = 7, 15
_JSON_VERSION = 1


def show(events: Iterable[Finding | Activity], console: Console | None, progress: Console) -> tuple[Finding, ...]:
    """Draw findings as they come, and return them.

    Args:
        events: findings, and what is being done meanwhile.
        console: where findings are drawn; None to draw none.
        progress: where it is said what is being done, if it is a terminal.
    """
    findings = []
    with contextlib.ExitStack() as shown:
        for event in events:
            shown.close()
            if isinstance(event, Activity):
                if progress.is_terminal:
                    shown.enter_context(progress.status(f"{event.doing} …"))
                continue
            findings.append(event)
            if console is not None:
                console.print(_drawn(event))
    return tuple(findings)


def summarise(findings: Iterable[Finding]) -> str:
    """How many problems and warnings there are, in one line."""
    found = [finding.status for finding in findings]
    problems, warnings = found.count(Status.PROBLEM), found.count(Status.WARNING)
    return f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}."


def as_json(findings: Iterable[Finding]) -> str:
    """The findings as JSON text."""
    found = list(findings)
    told = {
        "version": _JSON_VERSION,
        "autofit": version("autofit"),
        "problems": sum(finding.status is Status.PROBLEM for finding in found),
        "warnings": sum(finding.status is Status.WARNING for finding in found),
        "findings": [asdict(finding) for finding in found],
    }
    return json.dumps(told, indent=2)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether something keeps autofit from working."""
    return any(finding.status is Status.PROBLEM for finding in findings)


def _drawn(finding: Finding) -> Table:
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
