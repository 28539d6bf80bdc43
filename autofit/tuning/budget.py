"""What a tune may spend: trials and seconds, shared between search and confirmation.

    0 ─── describing ─── trials of the search ─── finalists once more ─── pairs of confirming runs ─── max_seconds
                              │                          │                          │
              each begins only if three pairs fit after it                each begins only if it fits

What runs at `max_seconds` is ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import monotonic

from autofit.records.result import KEPT_PAIRS
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.tuning.settings import TuneSettings

SEARCH_SECONDS = 1.5
"""Most seconds for which a trial of the search is timed."""

CONFIRM_SECONDS = 2.5
"""Seconds for which a confirming run is timed."""

_TRIAL_STEPS = 10  # of a trial of the search, where steps are slow
_FURTHER_STEPS = 8  # of a confirming run than of a trial, where steps are slow: its first epoch, and validation
_MARGIN_RATIO = 1.1  # of the expected seconds of a run: runs of one config differ by a tenth
_RIVAL_MARGIN_RATIO = 1.25  # of the first trial's seconds, for the second: its batch may be larger (assumed)
_FEWEST_TRIALS = 2  # that finish before three pairs take precedence: a single one has no rival
_CONFIRM_PATIENCE_RATIO = 4.0  # of the seconds that the config took in the search: only a hang takes longer
_COMPILE_SECONDS = 300.0  # more for a trial that compiles by torch.compile: on two cores 28 s (small CNN), 107 s (ResNet50)
_EXTRA_OOM_TRIALS = 6  # beyond max_trials while every trial so far ran out of memory: enough to reach batch 1 by quarters
_HOPELESS_TRIALS = 3  # timeouts or crashes without any other outcome: the next trial fails, too


class Budget:
    """Tracks elapsed time and trials of one tune, from its creation on."""

    def __init__(self, settings: TuneSettings) -> None:
        self._settings = settings
        self._started = monotonic()
        self._compile_seconds = 0.0

    def allow_compiling(self) -> None:
        """Give each further trial time to compile its step besides."""
        self._compile_seconds = _COMPILE_SECONDS

    @property
    def most_trial_seconds(self) -> float:
        """Most seconds for a trial where `max_seconds` leaves them."""
        return self._settings.max_trial_seconds + self._compile_seconds

    def seconds(self) -> float:
        """Seconds spent so far."""
        return monotonic() - self._started

    def seconds_left(self) -> float:
        """Seconds until `max_seconds`; infinite without it."""
        max_seconds = self._settings.max_seconds
        return math.inf if max_seconds is None else max(0.0, max_seconds - self.seconds())

    def stop_reason(self, trials: Sequence[Trial], baseline: FitConfig, earlier: int = 0) -> str | None:
        """Why the search may run no further trial, or None.

        The first `earlier` trials are of an earlier tune: the cause of their timeouts or crashes may have been repaired.
        """
        settings = self._settings
        nothing_fits_yet = bool(trials) and all(trial.measurement.outcome.is_oom for trial in trials)
        if len(trials) >= settings.max_trials + (_EXTRA_OOM_TRIALS if nothing_fits_yet else 0):
            return "the only trial is spent" if settings.max_trials == 1 else f"all {settings.max_trials} trials are spent"
        outcomes = [trial.measurement.outcome for trial in trials[earlier:]]
        if len(outcomes) >= _HOPELESS_TRIALS and set(outcomes) <= {Outcome.TIMEOUT, Outcome.CRASHED}:
            return f"the first {len(outcomes)} trials all timed out or crashed"
        if _trial_seconds(trials) >= self._seconds_for_trial(trials, baseline):
            return self.out_of_time(self.reserved_seconds(trials, baseline))
        return None

    def out_of_time(self, reserved_seconds: float = 0.0) -> str:
        """The reason for stopping when the seconds are spent, but for those reserved for confirming."""
        seconds = self._settings.max_seconds or 0.0
        spent = f"the {seconds:g} seconds are spent" if seconds != 1 else "the one second is spent"
        return f"{spent}, but for those kept for confirming" if reserved_seconds and self.seconds_left() else spent

    def reserved_seconds(self, trials: Sequence[Trial], baseline: FitConfig) -> float:
        """The part of the seconds left that is kept for confirming; 0 without `max_seconds`, or before a trial finished.

        It is the time of three pairs of runs of the fastest config and the baseline; of one pair where two trials and
        three pairs cannot be had; of one run of the fastest where the baseline takes longer than what is left.
        """
        if self._settings.max_seconds is None or not _finished(trials):
            return 0.0
        return self._rounds(trials, baseline) * _round_seconds(trials, self._rivals(trials, baseline))

    def _rivals(self, trials: Sequence[Trial], baseline: FitConfig) -> tuple[FitConfig, ...]:
        """What the fastest config is to be compared with: the baseline, if there is time for a pair of runs."""
        return (baseline,) if _round_seconds(trials, (baseline,)) <= self.seconds_left() else ()

    def _rounds(self, trials: Sequence[Trial], baseline: FitConfig) -> int:
        """How often the fastest config, and the baseline if there is time for it, are to run."""
        if not self._rivals(trials, baseline):
            return 1
        needed = _RIVAL_MARGIN_RATIO * _trial_seconds(trials)
        scarce = needed >= self._seconds_beside(trials, (baseline,), KEPT_PAIRS)
        return 1 if scarce and len(_finished(trials)) < _FEWEST_TRIALS else KEPT_PAIRS

    def _seconds_beside(self, trials: Sequence[Trial], rivals: Sequence[FitConfig], rounds: int) -> float:
        """The longest trial beside which so many runs fit of its config or the best so far, and of each rival."""
        left = self.seconds_left() - rounds * sum(confirming_seconds(rival, trials) for rival in rivals)
        further = CONFIRM_SECONDS - SEARCH_SECONDS
        before_its_own = (left - rounds * _MARGIN_RATIO * further) / (1 + rounds * _MARGIN_RATIO)
        quick = min(t.measurement.seconds - _TRIAL_STEPS * (t.measurement.step_seconds or 0.0) for t in _finished(trials))
        if before_its_own > quick:  # what takes longer may have slow steps, of which a confirming run takes more
            slower = _FURTHER_STEPS / _TRIAL_STEPS
            further -= slower * quick
            before_its_own = (left - rounds * _MARGIN_RATIO * further) / (1 + rounds * _MARGIN_RATIO * (1 + slower))
        return min(before_its_own, self.seconds_left() - rounds * _round_seconds(trials, rivals))

    def _seconds_for_trial(self, trials: Sequence[Trial], baseline: FitConfig) -> float:
        """How long the next trial of the search may take, so that its config, or the best so far, can be confirmed."""
        if not self.reserved_seconds(trials, baseline):
            return self.seconds_left()
        return self._seconds_beside(trials, self._rivals(trials, baseline), self._rounds(trials, baseline))

    def trial_deadline_seconds(self, trials: Sequence[Trial], baseline: FitConfig) -> float:
        """How long the next trial of the search may take."""
        return min(self.most_trial_seconds, max(0.0, self._seconds_for_trial(trials, baseline)))

    def deadline_seconds(self) -> float:
        """How long any other process may take."""
        return min(self.most_trial_seconds, self.seconds_left())

    def confirming_deadline_seconds(self, measured: Measurement) -> float:
        """How long a confirming run may take, given a measurement of the search: enough for a slow run of that config."""
        patience = max(self.most_trial_seconds, _CONFIRM_PATIENCE_RATIO * measured.seconds)
        return min(patience, self.seconds_left())

    def allows_reruns(self, finalists: Sequence[Trial], trials: Sequence[Trial], baseline: FitConfig) -> bool:
        """Whether there is time to run these finalists once more, and then for three pairs of confirming runs."""
        again = sum(_MARGIN_RATIO * trial.measurement.seconds for trial in finalists)
        pair = confirming_seconds(baseline, trials) + max(confirming_seconds(t.config, trials) for t in finalists)
        return again + KEPT_PAIRS * pair <= self.seconds_left()

    def allows_pairs(self, config: FitConfig, trials: Sequence[Trial], baseline: FitConfig) -> bool:
        """Whether there is time for as many pairs of runs of a config and the baseline as most gains take."""
        return self.allows_runs((config, baseline) * KEPT_PAIRS, trials)

    def allows_runs(self, configs: Iterable[FitConfig], trials: Sequence[Trial]) -> bool:
        """Whether there is time for a confirming run of each of these configs; `trials` are all that ran."""
        return sum(confirming_seconds(config, trials) for config in configs) <= self.seconds_left()


def confirming_seconds(config: FitConfig, trials: Sequence[Trial]) -> float:
    """Seconds that a confirming run of a config takes, at most.

    From its confirming runs among the trials; before there are any, from the trial of the config, or else from that with
    the nearest batch size.
    """
    finished = _finished(trials)
    confirming = [trial for trial in finished if trial.stage in (Stage.CHOSEN, Stage.BASELINE)]
    own = [trial.measurement.seconds for trial in confirming if trial.config == config]
    if own:
        return max(own)
    if not finished:
        return 0.0
    nearest = min(finished, key=lambda trial: (trial.config != config, _octaves(trial.config, config))).config
    times_larger = max(1.0, (config.batch_size or 1) / (nearest.batch_size or 1))
    return _MARGIN_RATIO * max(_expected_seconds(t.measurement, times_larger) for t in finished if t.config == nearest)


def _expected_seconds(measured: Measurement, times_larger: float) -> float:
    """Seconds of a confirming run with a batch so many times as large as that of a trial of the search."""
    steps = _FURTHER_STEPS * times_larger + _TRIAL_STEPS * (times_larger - 1)
    return measured.seconds + CONFIRM_SECONDS - SEARCH_SECONDS + steps * (measured.step_seconds or 0.0)


def _octaves(config: FitConfig, other: FitConfig) -> float:
    return abs(math.log2((config.batch_size or 1) / (other.batch_size or 1)))


def _trial_seconds(trials: Sequence[Trial]) -> float:
    """Expected seconds of the next trial: the mean of those that finished, or of all where none did."""
    seconds = [trial.measurement.seconds for trial in _finished(trials) or trials]
    return sum(seconds) / len(seconds) if seconds else 0.0


def _round_seconds(trials: Sequence[Trial], rivals: Sequence[FitConfig]) -> float:
    """Seconds of a confirming run of the fastest config so far and of each rival."""
    best = max(_finished(trials), key=lambda trial: trial.measurement.samples_per_second or 0.0)
    return sum(confirming_seconds(config, trials) for config in (best.config, *rivals))


def _finished(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.measurement.outcome is Outcome.OK]
