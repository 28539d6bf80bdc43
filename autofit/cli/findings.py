"""The results of checks, and how they are printed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.records.distribution import __version__
from autofit.records.events import Activity


class Status(str, Enum):
    """Severity: a problem keeps autofit from working, a warning makes it slow or its results unreliable."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` is None if and only if the status is OK."""

    status: Status
    subject: str
    detail: str
    remedy: str | None = None


ok = partial(Finding, Status.OK)
warning = partial(Finding, Status.WARNING)
problem = partial(Finding, Status.PROBLEM)

_JSON_VERSION = 1
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}
_STATUS_CELLS, _SUBJECT_CELLS = 7, 15


def findings_as_json(findings: Iterable[Finding], **summary: object) -> str:
    """Return findings as JSON, after the fields of their summary."""
    listed = [asdict(finding) for finding in findings]
    return json.dumps({"version": _JSON_VERSION, "autofit": __version__, **summary, "findings": listed}, indent=2)


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
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_STATUS_CELLS)
    grid.add_column(width=_SUBJECT_CELLS)
    grid.add_column(overflow="fold")
    status = Text(finding.status.value, style=_STYLES[finding.status])
    grid.add_row(status, Text(finding.subject, style="bold"), Text(finding.detail))
    if finding.remedy is not None:
        grid.add_row("", "", Text(f"→ {finding.remedy}"))
    return grid
