"""The events of a tune, which the console shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.machine import Machine
from autofit.records.states import Phase
from autofit.records.trial import FitConfig, Limits, Trial


@dataclass(frozen=True)
class Described:
    """The workload is described, and the search begins.

    `kept` are the stored trials of an earlier run; `seconds` is the time spent so far, which counts towards `max_seconds`.
    `knobs` are the names of the knobs that are searched.
    """

    description: Description
    limits: Limits
    machine: Machine
    device: str
    kept: tuple[Trial, ...]
    max_trials: int
    max_seconds: float | None
    seconds: float = 0.0
    knobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Activity:
    """The current activity of the tune and its reason.

    `config` is None if no trial is running; `phase` is None until the trial's process reports one. `reserved_seconds` is
    the part of the remaining time that is reserved for confirming.
    """

    doing: str
    config: FitConfig | None = None
    phase: Phase | None = None
    why: str = ""
    reserved_seconds: float = 0.0


@dataclass(frozen=True)
class TrialEnded:
    """A trial ended."""

    trial: Trial


@dataclass(frozen=True)
class Notice:
    """Information for the reader of the result."""

    text: str


Event = Described | Activity | TrialEnded | Notice
Emit = Callable[[Event], None]
"""A function that receives each event of a tune when it happens."""
