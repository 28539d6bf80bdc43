"""What a tune may spend: trials and seconds, and how they are shared between search and confirmation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from autofit.records.trial import Measurement, Outcome, Trial
from autofit.tuning.request import TuneRequest

SEARCH_SECONDS = 2.0
"""For how long a trial of the search takes the real rate, at the most."""

CONFIRM_SECONDS = 4.0
"""For how long a confirming run takes it."""

_ROUNDS = 3  # the fewest pairs of runs that give an interval worth the name
_CONFIRM_PATIENCE = 4.0  # times what the config took in the search: only a hang takes longer, whatever seconds are left
_RETREATS = 6  # from the largest default batch down to 1, by quarters: what fits is looked for beyond max_trials
_HOPELESS = 3  # so many timeouts or crashes, and nothing else, say that the next will be one, too


class Budget:
    """Keeps the time from its making on, for one question."""

    def __init__(self, request: TuneRequest) -> None:
        self._request = request
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Seconds spent so far."""
        return time.monotonic() - self._started

    def spent(self, trials: Sequence[Trial], kept: int = 0) -> str | None:
        """Why no further trial of the search is allowed, or None; seconds are kept for the confirmation.

        Of the trials so many are `kept` of an earlier tune: what made them time out or crash may have been mended since.
        """
        request = self._request
        nothing_fits_yet = bool(trials) and all(trial.measurement.outcome.is_oom for trial in trials)
        if len(trials) >= request.max_trials + (_RETREATS if nothing_fits_yet else 0):
            return f"all {request.max_trials} trials are spent"
        outcomes = [trial.measurement.outcome for trial in trials[kept:]]
        if len(outcomes) >= _HOPELESS and set(outcomes) <= {Outcome.TIMEOUT, Outcome.CRASHED}:
            return f"the first {len(outcomes)} trials all timed out or crashed"
        if request.max_seconds is not None and trials:
            seconds = [trial.measurement.seconds for trial in trials if trial.measurement.outcome is Outcome.OK]
            mean = sum(seconds) / len(seconds) if seconds else 0.0
            confirming = min(2 * _ROUNDS * (mean + CONFIRM_SECONDS - SEARCH_SECONDS), request.max_seconds / 2)
            if self.seconds() + mean + confirming > request.max_seconds:
                return self.out_of_time()
        return None

    def out_of_time(self) -> str:
        """The reason for stopping when the seconds are spent."""
        return f"the {self._request.max_seconds:g} seconds are spent"

    def deadline_seconds(self) -> float:
        """How long the next process may take."""
        request = self._request
        if request.max_seconds is None:
            return request.max_trial_seconds
        return max(min(request.max_trial_seconds, request.max_seconds - self.seconds()), 2 * CONFIRM_SECONDS)

    def confirming_deadline_seconds(self, known: Measurement) -> float:
        """How long a confirming run may take, given a trial of the search: never so short that only that shows."""
        return max(self.deadline_seconds(), _CONFIRM_PATIENCE * known.seconds)

    def allows_reruns(self, trials: Sequence[Trial], count: int) -> bool:
        """Whether there is time for another run of each of so many finalists, and for the confirmation after it."""
        request = self._request
        if request.max_seconds is None:
            return True
        longest = max(trial.measurement.seconds for trial in trials)
        return self.seconds() + (count + 2 * _ROUNDS) * (longest + CONFIRM_SECONDS - SEARCH_SECONDS) <= request.max_seconds

    def rounds(self, chosen: Trial) -> int:
        """How often the pair is run: fewer times when the seconds run out, once at the least."""
        request = self._request
        if request.max_seconds is None:
            return _ROUNDS
        return max(1, min(_ROUNDS, int((request.max_seconds - self.seconds()) / (2 * chosen.measurement.seconds))))
