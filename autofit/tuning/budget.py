"""Divide the trials and seconds that a tune may spend between search and confirmation.

    0 ─── describing ─── trials of the search ─── rounds of confirming runs ─── max_seconds
                              │                          │
         each starts only if three rounds fit after it   begun only if they fit, up to the next look

A run that is still in progress at `max_seconds` is ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from time import monotonic

from autofit.records.result import LOOKS
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.records.units import format_seconds
from autofit.search.space import octaves
from autofit.tuning.problem import Problem
from autofit.tuning.settings import TuneSettings

SEARCH_SECONDS = 1.5  # a trial of the search is timed for at most this long
CONFIRM_SECONDS = 2.5  # a confirming run is timed for this long
COMPILE_SECONDS = 300.0  # extra for torch.compile (measured on two cores: 28 s for a small CNN, 107 s for ResNet50)
OWN_BATCH_TRIALS = (
    2  # beyond max_trials, at the own batch size, where the models already know most (assumed)
)
_TRIAL_STEPS = 10  # steps of a trial of the search if steps are slow
_FURTHER_STEPS = (
    8  # additional steps of a confirming run if steps are slow: its first epoch and validation
)
_MARGIN_RATIO = (
    1.1  # multiplies the expected seconds of a run: runs of one config differ by a tenth
)
_TRIAL_MARGIN_RATIO = (
    1.25  # seconds of the next trial / those before, as its batch may be larger (assumed)
)
_FEWEST_TRIALS, _ENOUGH_TRIALS = (
    3,
    5,
)  # finished trials before the confirming runs of one answer, and of two, come first
_MOST_CONFIRMING_TRIALS = 15  # trials in whose seconds all runs of a second or third look must end: those of a coarse grid
_CONFIRM_PATIENCE_RATIO = (
    4.0  # multiplies the seconds that the config took in the search: only a hang takes longer
)
_FEW_TRIALS = 5  # with fewer, each must be one that may become the answer (assumed)
_IN_EACH_TRIAL = (Phase.LOADING, Phase.OPENING, Phase.BUILDING)
_HOPELESS_TRIALS = 3  # if this many trials time out or crash and no other trial ran, the next one would fail as well


class Budget:
    """Tracks the elapsed time of one tune, which starts when the budget is created."""

    def __init__(self, settings: TuneSettings) -> None:
        self._started, self._max_seconds = monotonic(), settings.max_seconds
        self.max_trial_seconds = settings.options.max_trial_seconds

    def seconds(self) -> float:
        return monotonic() - self._started

    def seconds_left(self) -> float:
        """Return the seconds left until `max_seconds`; infinity if `max_seconds` is not set."""
        return (
            math.inf if self._max_seconds is None else max(0.0, self._max_seconds - self.seconds())
        )

    def deadline_seconds(self, measured_seconds: float = 0.0) -> float:
        """Return how long a process may take; a confirming run may be slower than its config was in the search."""
        return min(
            max(self.max_trial_seconds, _CONFIRM_PATIENCE_RATIO * measured_seconds),
            self.seconds_left(),
        )

    def trial_seconds(self, trials: Sequence[Trial], problem: Problem, own_trials: int) -> float:
        """Return how long the next trial may take, so that the best can be confirmed after it; 0 if that is too short.

        `own_trials` are those at the own batch size that are still to come.
        """
        left, reserved = self.seconds_left(), self._reserved_seconds(trials, problem, own_trials)
        seconds, own = left - reserved, confirming_seconds(problem.baseline, trials)
        if reserved > LOOKS[0] * own:
            # if the next trial is the best, its confirming runs take as much longer as they are timed for longer
            rounds, longer = LOOKS[0] * _MARGIN_RATIO, CONFIRM_SECONDS - SEARCH_SECONDS
            seconds = min(seconds, (left - LOOKS[0] * own - rounds * longer) / (1 + rounds))
        return min(self.max_trial_seconds, seconds) if seconds > _trial_seconds(trials) else 0.0

    def is_short(self, trials: Sequence[Trial], problem: Problem, own_trials: int) -> bool:
        """Return whether, beside what is reserved, time is left for a few trials only."""
        left = self.seconds_left() - self._reserved_seconds(trials, problem, own_trials)
        return left < _FEW_TRIALS * _trial_seconds(trials)

    # Time is reserved for the trials at the own batch size, and three rounds of the fastest config so far, the baseline and
    # a config at its batch size. If that leaves too few trials, it is reserved for three rounds of two configs, or for one
    # run of the fastest config: without trials, there is nothing to confirm.
    def _reserved_seconds(
        self, trials: Sequence[Trial], problem: Problem, own_trials: int
    ) -> float:
        finished, baseline = _finished(trials), problem.baseline
        if self._max_seconds is None or not finished:
            return 0.0
        best = max(finished, key=lambda trial: trial.samples_per_second).config
        one, own = confirming_seconds(best, trials), confirming_seconds(baseline, trials)
        rounds = [(_FEWEST_TRIALS, LOOKS[0] * ((best != baseline) * one + own))]
        if problem.own_batch is not None and best.batch_size != baseline.batch_size:
            rounds.insert(0, (_ENOUGH_TRIALS, LOOKS[0] * (one + 2 * own) + own_trials * own))
        for fewest, seconds in rounds:
            is_young = len(finished) < fewest
            if (
                seconds + is_young * _TRIAL_MARGIN_RATIO * _trial_seconds(trials)
                <= self.seconds_left()
            ):
                return seconds
        return one

    def stop_reason(
        self, trials: Sequence[Trial], max_trials: int, trial_seconds: float
    ) -> str | None:
        """Return the reason why the search may run no further trial; None if it may run one for `trial_seconds`."""
        if len(trials) >= max_trials:
            return (
                "the only trial is used up"
                if max_trials == 1
                else f"all {max_trials} trials are used up"
            )
        outcomes = {trial.measurement.outcome for trial in trials}
        if len(trials) >= _HOPELESS_TRIALS and outcomes <= {Outcome.TIMEOUT, Outcome.CRASHED}:
            return f"the first {len(trials)} trials all timed out or crashed"
        if trial_seconds:
            return None
        left = self.seconds_left()
        is_too_little = (
            f"leaves {left:.0f} s, too few for another trial and confirming runs"
            if left >= 1
            else "is used up"
        )
        return f"max_seconds ({self._max_seconds or 0.0:g}) {is_too_little}"

    def too_short(self, ended: Sequence[Measurement], before: str) -> str:
        """Say what did not finish in time, where the time of the runs that `ended` went, and what would be enough."""
        text = f"max_seconds ({self._max_seconds or 0.0:g}) was too little time until {before}"
        by_phase = Counter[Phase]()
        for measurement in ended:
            by_phase.update(measurement.phase_seconds)
        for phase, seconds in by_phase.most_common(1):
            text += f"; {phase.label} took {format_seconds(seconds)}"
            if phase in _IN_EACH_TRIAL:
                text += ", which each trial does anew"
        # what is missing: a trial and its confirming runs, each at least as long as what was cut
        longest = max((measurement.seconds for measurement in ended), default=0.0)
        missing = (1 + LOOKS[0]) * _TRIAL_MARGIN_RATIO * longest
        least = 10 * math.ceil(max(self.seconds() + missing, self._max_seconds or 0.0) / 10)
        return f"{text}. Raise it to {least}"

    def rounds_fit(
        self, configs: Sequence[FitConfig], rounds: int, trials: Sequence[Trial], *, is_first: bool
    ) -> tuple[bool, float | None]:
        """Return whether there is time for rounds of these configs, and if not, the `max_seconds` that would do."""
        seconds = rounds * sum(confirming_seconds(config, trials) for config in configs)
        if seconds > self.seconds_left():
            return False, 10.0 * math.ceil((self.seconds() + seconds) / 10)
        spent = sum(
            trial.measurement.seconds for trial in trials if trial.stage is not Stage.SEARCH
        )
        searched = [trial for trial in trials if trial.stage is Stage.SEARCH]
        # all but the first look must end within the time of a coarse grid, whatever `max_seconds` is
        return is_first or spent + seconds <= _MOST_CONFIRMING_TRIALS * _trial_seconds(
            searched
        ), None


def confirming_seconds(config: FitConfig, trials: Sequence[Trial]) -> float:
    """Return the expected seconds of a confirming run, by earlier ones, the config's trial or that of the nearest batch."""
    finished = _finished(trials)
    own = [
        t.measurement.seconds
        for t in finished
        if t.config == config and t.stage is not Stage.SEARCH
    ]
    if own or not finished:
        return max(own, default=0.0)
    ran = [trial.config for trial in finished]
    nearest = min(
        ran, key=lambda other: (other != config, octaves(other.batch_size, config.batch_size))
    )
    times_larger = max(1.0, (config.batch_size or 1) / (nearest.batch_size or 1))
    steps = _FURTHER_STEPS * times_larger + _TRIAL_STEPS * (times_larger - 1)
    measured = [trial.measurement for trial in finished if trial.config == nearest]
    longer = (
        m.seconds + CONFIRM_SECONDS - SEARCH_SECONDS + steps * (m.step_seconds or 0.0)
        for m in measured
    )
    return _MARGIN_RATIO * max(longer)


def _trial_seconds(trials: Sequence[Trial]) -> float:  # expected of the next one
    seconds = [trial.measurement.seconds for trial in _finished(trials) or trials]
    return sum(seconds) / len(seconds) if seconds else 0.0


def _finished(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.measurement.outcome is Outcome.OK]
