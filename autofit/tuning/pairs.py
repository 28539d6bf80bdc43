"""Compare a config with the baseline in pairs of confirming runs, and recommend one of them.

This module has no side effects. After two, three and four pairs, the interval of the speedup decides how to go on:

    interval above the tolerance                  stop: the config is faster
    interval within or below the tolerance        stop: the config is not faster
    five pairs would hardly show a gain           stop: the question is not worth more runs
    otherwise                                     run another pair, up to five pairs
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from autofit.records.intervals import pooled_half_width, sequential_interval
from autofit.records.result import SHOWING_PAIRS, Challenger, Recommendation, Speedup
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Limits, Measurement, Trial

MOST_PAIRS = 5
"""The most pairs of runs for one config."""

# After this number of pairs, no more are run if the lead exceeds the tolerance by less than this share of its half-width.
# With the scatter so far, the half-width after five pairs is then above the lead, even if that rises by a standard error:
# t(4) / t(n - 1) · (n / 5)^½ - (1 - n / 5)^½ / t(n - 1), quantiles as in `sequential_interval` if one config scatters.
_HOPEFUL_SHARES = {3: 0.34, 4: 0.64}


@dataclass
class Pair:
    """Holds the confirming runs of a config and of the baseline.

    `chosen` and `baseline_trial` are their trials in the search. `baseline_trial` is None if no trial of the baseline
    finished.
    """

    chosen: Trial
    baseline: FitConfig
    baseline_trial: Trial | None = None
    validation_batch_size: int | None = None
    runs: dict[FitConfig, list[Measurement]] = field(default_factory=dict)
    rounds: int = 0
    chosen_failed: bool = False
    out_of_time: bool = False
    baseline_failure: Measurement | None = None

    @property
    def is_over(self) -> bool:
        """Whether no further run is possible."""
        return self.chosen_failed or self.out_of_time

    def next_round(self) -> tuple[FitConfig, ...]:
        """Return the configs of the next round; their order is reversed in every second round."""
        if self.baseline == self.chosen.config or self.baseline_failure is not None:
            return (self.chosen.config,)
        order = self.chosen.config, self.baseline
        return order if self.rounds % 2 == 0 else order[::-1]

    def most_rounds(self, tolerance: float) -> int:
        """Return how many rounds are needed to decide whether the config is faster by more than the tolerance."""
        if len(self.next_round()) < 2:
            return SHOWING_PAIRS
        speedup, least = self.speedup(), _least_gain(tolerance)
        if speedup.ratio is None or speedup.low is None or speedup.high is None:
            return MOST_PAIRS
        lead, half_width = math.log(speedup.ratio / least), math.log(speedup.ratio / speedup.low)
        hopeful_share = _HOPEFUL_SHARES.get(speedup.pairs)
        is_doubtful = hopeful_share is not None and lead <= hopeful_share * half_width
        return SHOWING_PAIRS if speedup.low > least or speedup.high <= least or is_doubtful else MOST_PAIRS

    def speedup(self) -> Speedup:
        """Return the ratio of the geometric mean rates of both configs, with its interval.

        If one config has more runs than the other, its last runs are ignored.
        """
        if self.baseline_failure is not None:
            return Speedup(self.baseline, self.baseline_failure.outcome)
        logs = [self._log_rates(config) for config in (self.chosen.config, self.baseline)]
        pairs = min(map(len, logs))
        if not pairs:
            return Speedup(self.baseline, Outcome.OK)
        lead, half_width = sequential_interval(*(of_one[:pairs] for of_one in logs))
        low, high = (math.exp(lead - half_width), math.exp(lead + half_width)) if pairs > 1 else (None, None)
        return Speedup(self.baseline, Outcome.OK, math.exp(lead), low, high, pairs)

    def _log_rates(self, config: FitConfig) -> list[float]:
        return [math.log(rate) for rate in _rates(self.runs.get(config, ()))]

    def recommendation(self, tolerance: float, limits: Limits, *, baseline_may_win: bool) -> Recommendation:
        """Recommend the config if it is shown to be faster by more than the tolerance, and the baseline otherwise.

        The config is also recommended if `baseline_may_win` is false, or if a run of the baseline failed.
        """
        speedup = self.speedup()
        if self.baseline == self.chosen.config:
            return self._recommend(self.chosen, self._no_gain())
        is_faster = (speedup.low or 0.0) > _least_gain(tolerance)
        kept = self._baseline_instead(limits) if baseline_may_win and not is_faster else None
        return kept or self._recommend(self.chosen, speedup)

    def _baseline_instead(self, limits: Limits) -> Recommendation | None:
        """Recommend the baseline instead of the config; return None if a run of it failed or exceeded the limits."""
        kept = self._baseline_kept(limits)
        if kept is None:
            return None
        runs = self.runs.get(self.chosen.config) or [self.chosen.measurement]
        challenger = Challenger(self.chosen.config, statistics.median(_rates(runs)), self.speedup())
        return self._recommend(kept, self._no_gain(), challenger)

    def _no_gain(self) -> Speedup:
        return Speedup(self.baseline, Outcome.OK, 1.0, 1.0, 1.0, len(self.runs.get(self.baseline, ())))

    def _baseline_kept(self, limits: Limits) -> Trial | None:
        """Return a trial of the baseline if all its runs finished within the limits; otherwise None."""
        runs = [Trial(self.baseline, measurement) for measurement in self.runs.get(self.baseline, ())]
        trials = [trial for trial in (self.baseline_trial, *runs) if trial is not None]
        fits = self.baseline_failure is None and all(trial.fits(limits) for trial in trials)
        return trials[0] if trials and fits else None

    def _recommend(self, trial: Trial, speedup: Speedup, challenger: Challenger | None = None) -> Recommendation:
        confirming = self.runs.get(trial.config, [])
        runs = confirming or [trial.measurement]
        everything = [trial.measurement, *runs]
        spread = runs[0].spread
        if len(runs) > 1:
            others = [self._log_rates(config) for config in self.runs if config != trial.config]
            spread = math.expm1(pooled_half_width(self._log_rates(trial.config), *others))
        return Recommendation(
            config=trial.config,
            samples_per_second=statistics.median(_rates(runs)),
            spread=spread,
            device_peak_bytes=_peak([m.device_peak_bytes for m in everything]),
            host_peak_bytes=_peak([m.host_peak_bytes for m in everything]),
            speedup=speedup,
            validation_batch_size=self.validation_batch_size if trial.config == self.chosen.config else None,
            challenger=challenger,
            confirmed=bool(confirming),
        )


def _least_gain(tolerance: float) -> float:
    """Return the speedup above which the rate of the baseline is not within the tolerance of the config's rate."""
    return 1 / (1 - tolerance)


def _rates(runs: Sequence[Measurement]) -> list[float]:
    return [run.samples_per_second or 0.0 for run in runs]


def _peak(readings: Sequence[int | None]) -> int | None:
    return max((reading for reading in readings if reading is not None), default=None)
