"""The events of a tune, which the console shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.knobs import FitConfig
from autofit.records.result import TuneLog
from autofit.records.states import Phase
from autofit.records.trial import Trial


@dataclass(frozen=True)
class Described:
    """The workload is described, and the search begins."""

    description: Description
    log: TuneLog  # with the stored trials of an earlier run
    max_seconds: float | None
    knobs: tuple[str, ...] = ()  # names of those that are searched


@dataclass(frozen=True)
class Activity:
    """The current activity of the tune and its reason."""

    doing: str
    config: FitConfig | None = None  # None if no trial is running
    phase: Phase | None = None  # None until the trial's process reports one
    why: str = ""


# a trial that ended, and, as text, a notice for the reader of the result
Event = Described | Activity | Trial | str
# a function that receives each event of a tune when it happens
Emit = Callable[[Event], None]
