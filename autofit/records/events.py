"""What a tune yields while it runs, for whoever draws it."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.records.machine import Machine
from autofit.records.trial import Description, FitConfig, Limits, Trial


@dataclass(frozen=True)
class Described:
    """Event: the workload is described and the search begins; `kept` trials of an earlier run are used."""

    description: Description
    limits: Limits
    machine: Machine
    device: str
    kept: tuple[Trial, ...]
    max_trials: int
    max_seconds: float | None


@dataclass(frozen=True)
class Activity:
    """Event: what is being done now, and why; `config` is None while nothing is tried."""

    doing: str
    config: FitConfig | None = None
    phase: str | None = None
    why: str = ""


@dataclass(frozen=True)
class TrialEnded:
    """Event: a trial of the search, another run of a finalist, or a run of the confirmation ended.

    `stage` is search, finalist, chosen or baseline.
    """

    trial: Trial
    stage: str


@dataclass(frozen=True)
class Notice:
    """Event: something that whoever reads the result should know."""

    text: str


Event = Described | Activity | TrialEnded | Notice
