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
    """The workload is described, and the search begins."""

    description: Description
    limits: Limits
    machine: Machine
    device: str
    kept: tuple[Trial, ...]  # the stored trials of an earlier run
    max_trials: int
    max_seconds: float | None
    seconds: float = 0.0  # spent so far, which counts towards `max_seconds`
    knobs: tuple[str, ...] = ()  # names of those that are searched


@dataclass(frozen=True)
class Activity:
    """The current activity of the tune and its reason."""

    doing: str
    config: FitConfig | None = None  # None if no trial is running
    phase: Phase | None = None  # None until the trial's process reports one
    why: str = ""


@dataclass(frozen=True)
class TrialEnded:
    """A trial ended."""

    trial: Trial


@dataclass(frozen=True)
class Notice:
    """Information for the reader of the result."""

    text: str


Event = Described | Activity | TrialEnded | Notice
Emit = Callable[[Event], None]  # a function that receives each event of a tune when it happens
