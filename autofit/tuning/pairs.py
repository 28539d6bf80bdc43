"""Pairs of confirming runs: a config against the baseline, what they show, and which of the two they recommend. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from autofit.records.intervals import mean_interval
from autofit.records.result import SHOWING_PAIRS, Challenger, Recommendation, Speedup
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Limits, Measurement, Trial

MOST_PAIRS = 6
"""Pairs of runs of one config, at most: six make the interval two and a half times as narrow as three.

The interval is looked at after three pairs and after the last: of configs that are equally fast, 4.5 % would be called
faster (simulated with normal noise), instead of the 2.5 % of a single look."""


@dataclass
class Pair:
    """The confirming runs of a config and of the baseline.

    `chosen` and `baseline_trial` are their trials of the search; None if the baseline has none.
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
        """Whether no run can follow."""
        return self.chosen_failed or self.out_of_time

    def next_round(self) -> tuple[FitConfig, ...]:
        """The configs of the next round in their order, which changes from round to round."""
        if self.baseline == self.chosen.config or self.baseline_failure is not None:
            return (self.chosen.config,)
        order = self.chosen.config, self.baseline
        return order if self.rounds % 2 == 0 else order[::-1]

    def most_rounds(self, tolerance: float) -> int:
        """The number of rounds: more than three while they leave open which of both is faster."""
        speedup = self.speedup()
        if len(self.next_round()) < 2 or speedup.high is None or speedup.pairs < SHOWING_PAIRS:
            return SHOWING_PAIRS
        is_decided = speedup.is_shown or speedup.high <= _least_gain(tolerance)
        return SHOWING_PAIRS if is_decided else MOST_PAIRS

    def speedup(self) -> Speedup:
        """The geometric mean of the ratios of neighbouring runs, with Student's 95 % interval of their logarithms."""
        if self.baseline_failure is not None:
            return Speedup(self.baseline, self.baseline_failure.outcome)
        runs = zip(self.runs.get(self.chosen.config, ()), self.runs.get(self.baseline, ()), strict=False)
        logs = [math.log((chosen.samples_per_second or 0) / (base.samples_per_second or 1)) for chosen, base in runs]
        if not logs:
            return Speedup(self.baseline, Outcome.OK)
        mean, half_width = mean_interval(logs)
        low, high = (math.exp(mean - half_width), math.exp(mean + half_width)) if len(logs) > 1 else (None, None)
        return Speedup(self.baseline, Outcome.OK, math.exp(mean), low, high, len(logs))

    def recommendation(self, tolerance: float, limits: Limits, *, baseline_may_win: bool) -> Recommendation:
        """The baseline, unless the config is shown to be faster by more than the tolerance, or the baseline may not win."""
        speedup = self.speedup()
        if self.baseline == self.chosen.config:
            pairs = len(self.runs.get(self.baseline, ()))
            return self._recommend(self.chosen, Speedup(self.baseline, Outcome.OK, 1.0, 1.0, 1.0, pairs))
        is_faster = speedup.is_shown and (speedup.ratio or 0.0) > _least_gain(tolerance)
        kept = self._baseline_kept(limits) if baseline_may_win and not is_faster else None
        if kept is None:
            return self._recommend(self.chosen, speedup)
        runs = self.runs.get(self.chosen.config) or [self.chosen.measurement]
        challenger = Challenger(self.chosen.config, statistics.median(_rates(runs)), speedup)
        none = Speedup(self.baseline, Outcome.OK, 1.0, 1.0, 1.0, len(self.runs.get(self.baseline, ())))
        return self._recommend(kept, none, challenger)

    def _baseline_kept(self, limits: Limits) -> Trial | None:
        """A trial of the baseline, if all its runs finished within the limits."""
        runs = [Trial(self.baseline, measurement) for measurement in self.runs.get(self.baseline, ())]
        trials = [trial for trial in (self.baseline_trial, *runs) if trial is not None]
        fits = self.baseline_failure is None and all(trial.fits(limits) for trial in trials)
        return trials[0] if trials and fits else None

    def _recommend(self, trial: Trial, speedup: Speedup, challenger: Challenger | None = None) -> Recommendation:
        confirming = self.runs.get(trial.config, [])
        runs = confirming or [trial.measurement]
        mean, half_width = mean_interval(_rates(runs))
        everything = [trial.measurement, *runs]
        return Recommendation(
            config=trial.config,
            samples_per_second=statistics.median(_rates(runs)),
            spread=half_width / mean if len(runs) > 1 else runs[0].spread,
            device_peak_bytes=_peak([m.device_peak_bytes for m in everything]),
            host_peak_bytes=_peak([m.host_peak_bytes for m in everything]),
            speedup=speedup,
            validation_batch_size=self.validation_batch_size if trial.config == self.chosen.config else None,
            challenger=challenger,
            confirmed=bool(confirming),
        )


def _least_gain(tolerance: float) -> float:
    """The ratio up to which the baseline is within the tolerance of a faster config."""
    return 1 / (1 - tolerance)


def _rates(runs: Sequence[Measurement]) -> list[float]:
    return [run.samples_per_second or 0.0 for run in runs]


def _peak(readings: Sequence[int | None]) -> int | None:
    return max((reading for reading in readings if reading is not None), default=None)
