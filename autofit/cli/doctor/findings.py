"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial


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
