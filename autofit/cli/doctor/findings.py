"""What is found wrong, or right, about a machine and its software, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How much a finding matters: a problem keeps autofit from working, a warning spoils or slows what it does."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do about it, and is None where it is well."""

    subject: str
    status: Status
    detail: str
    remedy: str | None = None


def ok(subject: str, detail: str) -> Finding:
    """All is well with the subject."""
    return Finding(subject, Status.OK, detail)


def warning(subject: str, detail: str, remedy: str) -> Finding:
    """Something about the subject spoils or slows what autofit does."""
    return Finding(subject, Status.WARNING, detail, remedy)


def problem(subject: str, detail: str, remedy: str) -> Finding:
    """Something about the subject keeps autofit from working."""
    return Finding(subject, Status.PROBLEM, detail, remedy)
