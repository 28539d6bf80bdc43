"""The clock of a tune, and the seconds that its next runs are expected to take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from time import monotonic

from autofit.records.knobs import FitConfig
from autofit.records.result import ROUNDS
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.trial import Measurement, Trial
from autofit.records.units import format_seconds
from autofit.search.failures import with_outcome
from autofit.search.space import octaves
from autofit.tuning.settings import TuneSettings

# a trial of a new config is timed for at most this long
SEARCH_SECONDS = 1.5
# a further run of a config is timed for this long
CONFIRM_SECONDS = 2.5
# steps of a trial of the search if steps are slow
_TRIAL_STEPS = 10
# additional steps of a further run if steps are slow: its first epoch and validation
_FURTHER_STEPS = 8
# multiplies the expected seconds of a run: runs of one config differ by a tenth
_MARGIN_RATIO = 1.1
# seconds of the next trial / those before, as its batch may be larger (assumed)
_TRIAL_MARGIN_RATIO = 1.25
# multiplies the seconds that the config took in the search: only a hang takes longer
_PATIENCE_RATIO = 4.0
_IN_EACH_TRIAL = (Phase.LOADING, Phase.OPENING, Phase.BUILDING)


class Budget:
    """Tracks the elapsed time of one tune, which starts when the budget is created."""

    def __init__(self, settings: TuneSettings) -> None:
        self._started = monotonic()
        self._max_seconds = settings.max_seconds
        self.max_trial_seconds = settings.options.max_trial_seconds

    def seconds(self) -> float:
        return monotonic() - self._started

    def seconds_left(self) -> float:
        """Return the seconds left until `max_seconds`; infinity if `max_seconds` is not set."""
        if self._max_seconds is None:
            return math.inf
        return max(0.0, self._max_seconds - self.seconds())

    def deadline_seconds(self, measured_seconds: float = 0.0) -> float:
        """Return how long a process may take; a further run may be slower than the first one."""
        longest = max(self.max_trial_seconds, _PATIENCE_RATIO * measured_seconds)
        return min(longest, self.seconds_left())

    def too_short(self, ended: Sequence[Measurement], before: str) -> str:
        """Say what did not finish in time, where the time went, and what would be enough.

        The time is that of the runs that `ended`.
        """
        text = f"max_seconds ({self._max_seconds or 0.0:g}) was too little time until {before}"
        by_phase = Counter[Phase]()
        for measurement in ended:
            by_phase.update(measurement.phase_seconds)
        for phase, seconds in by_phase.most_common(1):
            text += f"; {phase.label} took {format_seconds(seconds)}"
            if phase in _IN_EACH_TRIAL:
                text += ", which each trial does anew"
        # what is missing: a trial, a run of its config and some beside the baseline, each at least
        # as long as what was cut
        longest = max((measurement.seconds for measurement in ended), default=0.0)
        needed = self.seconds() + (1 + ROUNDS) * _TRIAL_MARGIN_RATIO * longest
        least = 10 * math.ceil(max(needed, self._max_seconds or 0.0) / 10)
        return f"{text}. Raise it to {least}"


def longest_trial(seconds_left: float) -> float:
    """Return the most seconds of a trial that leave time for a further run of its config."""
    longer = _MARGIN_RATIO * (CONFIRM_SECONDS - SEARCH_SECONDS)
    return (seconds_left - longer) / (1 + _MARGIN_RATIO)


def confirming_seconds(config: FitConfig, trials: Sequence[Trial]) -> float:
    """Return the expected seconds of a further run of a config.

    They follow from its earlier ones, from its trial, or from that of the nearest batch.
    """
    finished = with_outcome(trials, Outcome.OK)
    own = [trial for trial in finished if trial.config == config]
    further = [
        trial.measurement.seconds for trial in own if trial.stage is not Stage.SEARCH
    ]
    if further or not finished:
        return max(further, default=0.0)
    if not own:
        ran = [trial.config for trial in finished]
        nearest = min(
            ran, key=lambda other: octaves(other.batch_size, config.batch_size)
        )
        own = [trial for trial in finished if trial.config == nearest]
    times_larger = max(1.0, (config.batch_size or 1) / (own[0].config.batch_size or 1))
    steps = _FURTHER_STEPS * times_larger + _TRIAL_STEPS * (times_larger - 1)
    measured = [trial.measurement for trial in own]
    longer = [
        m.seconds + CONFIRM_SECONDS - SEARCH_SECONDS + steps * (m.step_seconds or 0.0)
        for m in measured
    ]
    return _MARGIN_RATIO * max(longer)


def trial_seconds(trials: Sequence[Trial]) -> float:
    """Return the expected seconds of the next trial of a new config; 0 if none has run."""
    finished = with_outcome(trials, Outcome.OK)
    seconds = [trial.measurement.seconds for trial in finished or trials]
    return sum(seconds) / len(seconds) if seconds else 0.0
