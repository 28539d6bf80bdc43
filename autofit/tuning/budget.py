"""What a tune may spend: trials and seconds, shared between search and confirmation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from autofit.records.states import Outcome
from autofit.records.trial import Measurement, Trial
from autofit.tuning.settings import TuneSettings

SEARCH_SECONDS = 2.0
"""Most seconds for which a trial of the search is timed."""

CONFIRM_SECONDS = 4.0
"""Seconds for which a confirming run is timed."""

_ROUNDS = 3  # fewest pairs of runs for a useful interval
_CONFIRM_PATIENCE_RATIO = 4.0  # of the seconds that the config took in the search: only a hang takes longer
_EXTRA_OOM_TRIALS = 6  # beyond max_trials while every trial so far ran out of memory: enough to reach batch 1 by quarters
_HOPELESS_TRIALS = 3  # timeouts or crashes without any other outcome: the next trial fails, too


class Budget:
    """Tracks elapsed time and trials of one tune, from its creation on."""

    def __init__(self, settings: TuneSettings) -> None:
        self._settings = settings
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Seconds spent so far."""
        return time.monotonic() - self._started

    def stop_reason(self, trials: Sequence[Trial], earlier: int = 0) -> str | None:
        """Why the search may run no further trial, or None; seconds are reserved for the confirmation.

        The first `earlier` trials are of an earlier tune: the cause of their timeouts or crashes may have been repaired.
        """
        settings = self._settings
        nothing_fits_yet = bool(trials) and all(trial.measurement.outcome.is_oom for trial in trials)
        if len(trials) >= settings.max_trials + (_EXTRA_OOM_TRIALS if nothing_fits_yet else 0):
            return f"all {settings.max_trials} trials are spent"
        outcomes = [trial.measurement.outcome for trial in trials[earlier:]]
        if len(outcomes) >= _HOPELESS_TRIALS and set(outcomes) <= {Outcome.TIMEOUT, Outcome.CRASHED}:
            return f"the first {len(outcomes)} trials all timed out or crashed"
        if settings.max_seconds is not None and trials:
            seconds = [trial.measurement.seconds for trial in trials if trial.measurement.outcome is Outcome.OK]
            mean = sum(seconds) / len(seconds) if seconds else 0.0
            confirming = min(2 * _ROUNDS * (mean + CONFIRM_SECONDS - SEARCH_SECONDS), settings.max_seconds / 2)
            if self.seconds() + mean + confirming > settings.max_seconds:
                return self.out_of_time()
        return None

    def out_of_time(self) -> str:
        """The reason for stopping when the seconds are spent."""
        return f"the {self._settings.max_seconds:g} seconds are spent"

    def deadline_seconds(self) -> float:
        """How long the next process may take."""
        settings = self._settings
        if settings.max_seconds is None:
            return settings.max_trial_seconds
        return max(min(settings.max_trial_seconds, settings.max_seconds - self.seconds()), 2 * CONFIRM_SECONDS)

    def confirming_deadline_seconds(self, measured: Measurement) -> float:
        """How long a confirming run may take, given a measurement of the search; never too short for a healthy run."""
        return max(self.deadline_seconds(), _CONFIRM_PATIENCE_RATIO * measured.seconds)

    def allows_reruns(self, trials: Sequence[Trial], count: int) -> bool:
        """Whether there is time to run `count` finalists once more, and for the confirmation after it."""
        max_seconds = self._settings.max_seconds
        if max_seconds is None:
            return True
        longest = max(trial.measurement.seconds for trial in trials)
        return self.seconds() + (count + 2 * _ROUNDS) * (longest + CONFIRM_SECONDS - SEARCH_SECONDS) <= max_seconds

    def rounds(self, chosen: Trial) -> int:
        """How often the chosen config and the baseline run: less often when seconds run out, at least once."""
        max_seconds = self._settings.max_seconds
        if max_seconds is None:
            return _ROUNDS
        return max(1, min(_ROUNDS, int((max_seconds - self.seconds()) / (2 * chosen.measurement.seconds))))
