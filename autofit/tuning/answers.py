"""Decide which configs run beside the baseline, and what their runs show; `delivery.py` chooses the answers.

    estimated rates ──> a candidate for each answer: the likeliest best config, if it is not the answer already
                              │
    rounds: one run each of the baseline, the answers and the candidates       looked at after 3, 5 and 8 rounds
                              │
    shown to be faster than the answer by more than the tolerance ──> takes its place
    slower, or ahead by less than a third of its half-width ────────> given up
                              │
    the runs are readings like any other: candidates again, at most three for an answer

The answer of a contest is the config that its rounds have shown to be the fastest; it starts as the baseline. The fastest
of all is compared with that at the own batch size, in the same rounds, so it is never slower than that; once that answer is
another one, it is compared again, by the rounds so far. Only confirming runs enter an interval: the reading that made a
config a candidate is the highest of many, and so too high.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.records.intervals import sequential_interval
from autofit.records.result import LOOKS, Speedup
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.search.space import nearest

MOST_CANDIDATES = 3  # configs that are confirmed for one answer
# Student's quantiles at each look in a tune with one answer and with two: at most 5% of tunes call any config faster that
# is not, and at least 93% of intervals contain the true ratio (simulated: see tests/benchmarks/whole_tunes.py)
_ONE_QUANTILE, _TWO_QUANTILE = 0.98, 0.99
# of the half-width: a smaller lead over the tolerance is hardly shown by further rounds (simulated)
_DOUBTFUL_SHARE = 1 / 3


@dataclass
class Contest:
    """One answer: the config that is it so far, and its candidates, of which the last may still be open."""

    answer: FitConfig | None  # None until a candidate has run, if the baseline cannot be the answer
    candidates: list[FitConfig] = field(default_factory=list)
    is_open: bool = False
    needed_seconds: float | None = (
        None  # the `max_seconds` that would have allowed what time did not
    )

    @property
    def candidate(self) -> FitConfig | None:  # that is being compared with the answer
        return self.candidates[-1] if self.is_open else None


class Answers:
    """Holds the rounds of confirming runs, and what they decide.

    `own_batch` is the batch size of the baseline if it has an answer of its own, and None if there is only one answer.
    `baseline_may_win` is false if the user's space does not contain the baseline.
    """

    def __init__(
        self,
        baseline: FitConfig,
        tolerance: float,
        own_batch: int | None,
        *,
        baseline_may_win: bool,
    ) -> None:
        self.baseline, self._tolerance, self._own_batch = baseline, tolerance, own_batch
        # the answer until another is shown to be faster; None if the baseline may not win, or a run of it has failed
        self.first = baseline if baseline_may_win else None
        self.same_batch, self.fastest = self.both = Contest(self.first), Contest(self.first)
        self.baseline_outcome = Outcome.OK
        self._rounds: list[dict[FitConfig, float]] = []

    def propose(self, rates: Mapping[FitConfig, float]) -> bool:
        """Give each answer a candidate that is likely to be faster; return False if neither gets one.

        `rates` are the estimated rates of all configs that may be chosen, in samples per second.
        """
        own = {config: rate for config, rate in rates.items() if self.is_own(config)}
        for contest, among in ((self.same_batch, own), (self.fastest, rates)):
            if not among or len(contest.candidates) == MOST_CANDIDATES:
                continue
            best, answer = nearest(among, self._tolerance, self.baseline), contest.answer
            is_faster = (
                answer is None
                or answer not in rates
                or rates[answer] < (1 - self._tolerance) * rates[best]
            )
            is_other = contest is self.same_batch or not self.is_own(best)
            is_new = best not in (
                answer,
                self.baseline,
                *contest.candidates,
            )  # what was beaten stays so
            if is_new and is_faster and is_other:
                contest.candidates.append(best)
                contest.is_open = True
        return self.is_open

    @property
    def is_open(self) -> bool:
        return self.same_batch.is_open or self.fastest.is_open

    def next_round(self) -> tuple[FitConfig, ...]:
        """Return the configs of the next round; their order is reversed in every second round."""
        configs = [] if self.baseline_outcome is not Outcome.OK else [self.baseline]
        configs += [
            c for contest in self.both for c in (contest.answer, contest.candidate) if c is not None
        ]
        order = tuple(dict.fromkeys(configs))
        return order if len(self._rounds) % 2 else order[::-1]

    def rounds_to_look(self) -> tuple[int, bool]:
        """Return how many rounds are needed until the next look, and whether it is the first one at a candidate."""
        counts = [
            len(self.log_rates(contest.candidate))
            for contest in self.both
            if contest.candidate is not None
        ]
        return min(next(look for look in LOOKS if look > count) - count for count in counts), min(
            counts
        ) < LOOKS[0]

    def add_round(self, rates: Mapping[FitConfig, float]) -> None:
        """Add a round of runs, by their rates in samples per second, and decide what it allows to decide."""
        self._rounds.append({config: math.log(rate) for config, rate in rates.items()})
        fastest, best = self.fastest, self.fastest.answer
        if self._decide(self.same_batch):
            own = self.same_batch.answer
            lead, half_width = (
                self._lead(best, own, fastest, self._tolerance) if best and own else (0.0, 0.0)
            )
            if lead <= half_width:
                fastest.answer = (
                    own  # than which `best`, if it is another, may still be shown to be faster
                )
                fastest.is_open |= (
                    best in fastest.candidates[-1:] and len(self.log_rates(best)) < LOOKS[-1]
                )
        self._decide(fastest)

    def _decide(self, contest: Contest) -> bool:
        """Close a contest if its rounds decide it; return whether its candidate has become the answer."""
        candidate, answer = contest.candidate, contest.answer
        if candidate is None or (count := len(self.log_rates(candidate))) not in LOOKS:
            return False
        lead, half_width = (
            self._lead(candidate, answer, contest, self._tolerance) if answer else (math.inf, 0.0)
        )
        if lead > half_width:
            contest.answer, contest.is_open = candidate, False
            return True
        contest.is_open = count < LOOKS[-1] and lead > _DOUBTFUL_SHARE * half_width
        return False

    def drop(self, config: FitConfig, outcome: Outcome) -> None:
        """Exclude a config whose run failed with this outcome."""
        if config == self.baseline:
            self.baseline_outcome, self.first = outcome, None
        for contest in self.both:
            if contest.candidate == config:  # which does not count as one of the few
                contest.candidates.pop()
                contest.is_open = False
            contest.answer = self.first if contest.answer == config else contest.answer

    def give_up(self) -> None:
        """Close the open contests: no time is left. A candidate that has not run was none, except for the first."""
        for contest in self.both:
            if (
                contest.is_open
                and len(contest.candidates) > 1
                and not self.log_rates(contest.candidates[-1])
            ):
                contest.candidates.pop()
            contest.is_open = False

    def speedup(self, config: FitConfig) -> Speedup:
        """Return the rate of a config relative to the baseline, from the rounds that have both."""
        pairs = sum(config in rates and self.baseline in rates for rates in self._rounds)
        if self.baseline_outcome is Outcome.OK and config == self.baseline:
            return Speedup(self.baseline, Outcome.OK, 1.0, 1.0, 1.0, pairs)
        if self.baseline_outcome is not Outcome.OK or not pairs:
            return Speedup(self.baseline, self.baseline_outcome)
        contest = self.fastest if config in self.fastest.candidates else self.same_batch
        lead, half_width = self._lead(config, self.baseline, contest)
        low, high = (
            (math.exp(lead - half_width), math.exp(lead + half_width))
            if pairs > 1
            else (None, None)
        )
        return Speedup(self.baseline, Outcome.OK, math.exp(lead), low, high, pairs)

    def log_rates(self, config: FitConfig | None) -> list[float]:
        return [rates[config] for rates in self._rounds if config in rates]

    def is_own(self, config: FitConfig) -> bool:
        """Return whether a config has the own batch size, if that has an answer of its own."""
        return self._own_batch is not None and config.batch_size == self._own_batch

    def _lead(
        self, config: FitConfig, other: FitConfig, contest: Contest, tolerance: float = 0.0
    ) -> tuple[float, float]:
        """Return the lead of a config over another in log rate beyond a tolerance, and its half-width, by common rounds."""
        quantile = _ONE_QUANTILE if self._own_batch is None else _TWO_QUANTILE
        quantile = 1 - (1 - quantile) / max(
            1, len(contest.candidates)
        )  # later candidates share the error of the first
        both = [
            (rates[config], rates[other])
            for rates in self._rounds
            if config in rates and other in rates
        ]
        first, second = zip(*both, strict=True)
        lead, half_width = sequential_interval(first, second, quantile)
        return lead + math.log1p(-tolerance), half_width
