"""Where the seconds of an epoch go, by the readings of trials, and what would shorten it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import computed_field

from autofit.records.description import Description
from autofit.records.knobs import FitConfig
from autofit.records.states import Phase
from autofit.records.trial import Limits, Measurement, Trial
from autofit.records.units import Count, Positive, Seconds

# in the order in which they are shown; the last one passes once, not in each epoch
PartName = Literal[
    "data",
    "contention",
    "compiling",
    "step",
    "keras",
    "start",
    "validation",
    "first_step",
]
Cause = Literal[PartName, "other_work"]
Parts = Mapping[PartName, Seconds]

# of data that does not know its length
_ASSUMED_STEPS = 1000
# of an epoch: a smaller share that the rates of step and data alone do not explain is counted as
# waiting for data, as each of them is timed for half a second only
_LEAST_CONTENTION = 0.1


@dataclass(frozen=True)
class Remedy:
    """A change that may shorten a part of an epoch.

    `seconds` are those of a whole epoch with it. If a trial has measured them, `low` and `high` are
    the ends of their confidence interval; without these, they follow from other readings. All are
    None if it was not tried. The `note` says what else there is to know.
    """

    part: PartName
    change: str
    seconds: Seconds | None = None
    low: Seconds | None = None
    high: Seconds | None = None
    config: FitConfig | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The epochs of a config as its trials have read them.

    The `parts` add up to `seconds`, except the first step, which passes once. `run` is the one that
    timed the step alone as well.
    """

    config: FitConfig
    samples: Positive  # in an epoch
    steps: Positive
    is_length_known: bool  # otherwise the number of steps is assumed
    parts: Parts
    run: Measurement

    @computed_field  # type: ignore[prop-decorator]  # a property is meant
    @property
    def seconds(self) -> float:
        return sum(self.steady_parts.values())

    @property
    def steady_parts(self) -> Parts:
        """The parts of each epoch: all but the first step."""
        parts = dict(self.parts)
        del parts["first_step"]
        return parts

    @property
    def largest(self) -> PartName:
        parts = self.steady_parts
        return max(parts, key=parts.__getitem__)

    def cause_over(self, epochs: int) -> Cause:
        """Return what takes most of a training of some epochs."""
        if self.run.is_disturbed:
            return "other_work"
        largest = self.largest
        is_first = self.parts["first_step"] > epochs * self.parts[largest]
        return "first_step" if is_first else largest


@dataclass(frozen=True, kw_only=True)
class EpochRecord(Epoch):
    """Where the time of an epoch goes with the present config, and what each remedy gives.

    The `cause` is the largest part; the first step counts in equal shares in the program's epochs.
    """

    program: str
    cause: Cause
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]
    largest_batch_size: Positive | None  # that is expected to fit
    limits: Limits
    trials: Count  # that the answer is based on
    took_seconds: Seconds


def epoch_of(
    description: Description, config: FitConfig, trials: Sequence[Trial]
) -> Epoch:
    """Split an epoch of a config that has run into its parts."""
    runs = [
        trial.measurement
        for trial in trials
        if trial.config == config and trial.samples_per_second
    ]
    runs.sort(key=lambda run: run.is_disturbed)
    # all rates are those of one run
    run = next((run for run in runs if run.compute_samples_per_second), runs[0])
    known = _first(run.epoch_samples for run in runs) or description.sample_count
    batch = config.batch_size or 1
    samples = round(known or _ASSUMED_STEPS * batch)
    together = samples / (run.steady_samples_per_second or run.samples_per_second or 1)
    compiling = run.compiling_share * together
    step = together - compiling
    if compute := run.alone("compute"):
        step = min(step, samples / compute)
    data = together - compiling - step
    contention = 0.0
    if inputs := run.alone("input"):
        made = samples / inputs
        # while the step runs, if a queue or a pipeline makes batches meanwhile
        takes_turns = description.takes_turns and not config.has_queue
        contention = data - (made if takes_turns else max(0.0, made - step))
        contention = contention if contention > _LEAST_CONTENTION * together else 0.0
    validation = _first(run.validation_seconds for run in runs)
    keras = min(step, _between_steps(config, trials, samples))
    parts: dict[PartName, Seconds] = {
        "data": data - contention,
        "contention": contention,
        "compiling": compiling,
        "step": step - keras,
        "keras": keras,
        "start": _first(run.epoch_gap_seconds for run in runs),
        "validation": validation * description.validations_per_epoch,
        "first_step": _first(run.phase_seconds.get(Phase.FIRST_STEP) for run in runs),
    }
    steps = max(1, math.ceil(samples / batch))
    return Epoch(
        config=config,
        samples=samples,
        steps=steps,
        is_length_known=known is not None,
        parts=parts,
        run=run,
    )


def _between_steps(config: FitConfig, trials: Sequence[Trial], samples: int) -> float:
    """Return what Keras takes in an epoch to call the train function; 0 if that is unknown.

    More steps in a call show it: the step alone is then faster by what fewer calls save.
    """
    own = config.steps_per_execution or 1
    alone = dict[int, float]()
    for trial in trials:
        # also one that was raised to the rate of whole steps
        compute = trial.measurement.compute_samples_per_second
        if compute and trial.config.batch_size == config.batch_size:
            alone.setdefault(trial.config.steps_per_execution or 1, samples / compute)
    most = max(alone, default=own)
    if own not in alone or most <= own:
        return 0.0
    return max(0.0, alone[own] - alone[most]) / (1 - own / most)


def _first(values: Iterable[float | None]) -> float:
    return next((value for value in values if value is not None), 0.0)
