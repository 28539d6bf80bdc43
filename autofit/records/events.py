"""What happens during a tune, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.records.machine import Machine
from autofit.records.trial import Description, FitConfig, Limits, Stage, Trial


@dataclass(frozen=True)
class Described:
    """The workload is described and the search begins; `kept` are stored trials of an earlier run."""

    description: Description
    limits: Limits
    machine: Machine
    device: str
    kept: tuple[Trial, ...]
    max_trials: int
    max_seconds: float | None


@dataclass(frozen=True)
class Activity:
    """What is being done now, and why; `config` is None while no trial runs, `phase` until the trial's process has one."""

    doing: str
    config: FitConfig | None = None
    phase: str | None = None
    why: str = ""


@dataclass(frozen=True)
class TrialEnded:
    """A trial ended."""

    trial: Trial

    @property
    def stage(self) -> Stage:
        """The part of the tune that it belongs to."""
        return self.trial.stage


@dataclass(frozen=True)
class Notice:
    """Something that whoever reads the result should know."""

    text: str


Event = Described | Activity | TrialEnded | Notice
Emit = Callable[[Event], None]
"""Takes the events of a tune as they happen."""
