"""A call of `fit` that a trial makes, and the clocks that time it; this module loads no backend."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.records.states import Phase
from autofit.records.trial import INPUT_BOUND_RATIO
from autofit.trial.worker.step_clock import Epochs, StepClock
from autofit.workload.inputs.fit_input import FitInput

NOTICE_SECONDS = 0.1  # enough for the driver to read the memory of all processes


@dataclass(frozen=True)
class Plan:
    """A call of `fit`, which drives a clock in each of its phases.

    Each phase starts with an epoch, and the epoch ends when the clock is done:

        epoch 1: first epoch, then validation │ epoch 2, …: whole epochs, or the timed run │ end
    """

    arguments: Mapping[str, Any]
    clocks: Mapping[Phase, StepClock | Epochs]
    # of the first step, if that has a phase of its own
    first: Phase | None = None
    # whether the call ends with its data; if not, it is interrupted when the last clock is done
    ends_by_itself: bool = True
    # whether it ends as soon as that is so, without waiting for dispatched steps
    is_abandoned: bool = False
    # trained instead of the trial's own
    model: Any = None
    with_callbacks: bool = True

    @classmethod
    def of_one_step(cls, data: FitInput, samples: int, phase: Phase) -> Plan:
        """Plan a single step on a batch of the data."""
        clock = StepClock(samples, math.inf, steps=1)
        return cls(
            data.fit_arguments(1), {phase: clock}, ends_by_itself=data.ends_by_itself
        )


@dataclass(frozen=True)
class Rates:
    """The samples per second of the input alone, 0 if unknown, and of the step alone."""

    input: float
    step: float

    @property
    def expected(self) -> float:
        """The rate of both together that they allow; 0 if neither is known."""
        slower = min(self.input or math.inf, self.step)
        return 0.0 if slower == math.inf else slower

    @property
    def fills_queue(self) -> bool:
        """Whether the input is clearly faster than the step: its queue is full in training."""
        return self.input >= INPUT_BOUND_RATIO * self.step
