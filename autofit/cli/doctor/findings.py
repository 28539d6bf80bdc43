"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """Severity: a problem keeps autofit from working, a warning makes it slow or its results unreliable."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` is None if and only if the status is OK."""

    subject: str
    status: Status
    detail: str
    remedy: str | None = None


def ok(subject: str, detail: str) -> Finding:
    """Return a finding that needs no remedy."""
    return Finding(subject, Status.OK, detail)


def warning(subject: str, detail: str, remedy: str) -> Finding:
    """Return a finding that makes autofit slow or its results unreliable."""
    return Finding(subject, Status.WARNING, detail, remedy)


def problem(subject: str, detail: str, remedy: str) -> Finding:
    """Return a finding that keeps autofit from working."""
    return Finding(subject, Status.PROBLEM, detail, remedy)
