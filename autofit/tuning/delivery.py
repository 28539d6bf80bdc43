"""Choose the configs that a tune delivers: the likeliest best by all readings.

    readings ──> Beliefs: the posterior of all rates, and of their differences
                    │ likeliest best at the own batch size,
                    │ if P(faster than the baseline) ≥ LIKELY ────> the own answer
                    │ likeliest best of all,
                    │ if P(faster than the own answer) ≥ LIKELY ──> the fastest
                    └ otherwise what would be replaced stays

Runs beside each other decide what is *claimed* (`claims.py`); a gain need not be shown to reach the
user. By whole tunes on jobs of known truth (tests/benchmarks/whole_tunes.py), the threshold
delivers nearly as much as none, and where there is nothing to gain, 0.998 of the baseline's rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from scipy.special import ndtr

from autofit.records import confidence
from autofit.records.knobs import FitConfig
from autofit.records.result import Speedup
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search import failures
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.rates import Rates, rated_trials
from autofit.search.space import nearest
from autofit.search.value import LIKELY
from autofit.tuning.claims import NOTHING_SHOWN, Shown, speedup_of
from autofit.tuning.problem import Problem
from autofit.tuning.settings import LARGEST


class Beliefs:
    """What the readings say of the rates of configs: a Gaussian posterior of their logarithms."""

    def __init__(
        self,
        readings: Sequence[Trial],
        configs: Collection[FitConfig],
        context: SearchContext,
    ) -> None:
        self._index = {config: number for number, config in enumerate(configs)}
        arrays = ConfigArrays(list(configs), context.cores)
        self._predicted = Rates(readings, context).predict(arrays)

    def rate(self, config: FitConfig) -> tuple[float, float]:
        """Return the rate of a config in samples/s, and its relative spread.

        The spread is the half-width of the rate's interval.
        """
        index = self._index[config]
        deviation = float(self._predicted.deviation[index])
        half_width = math.expm1(confidence.deviations() * deviation)
        return math.exp(self._predicted.mean[index]), half_width

    def probability(self, config: FitConfig, other: FitConfig) -> float:
        """Return the probability that a config is faster than another."""
        lead, deviation = self._lead(config, other)
        return float(ndtr(lead / deviation)) if deviation else float(lead > 0)

    def speedup(self, config: FitConfig, baseline: FitConfig) -> Speedup:
        """Return how many times as fast as the baseline a config is, with its interval.

        It is not shown by pairs.
        """
        lead, deviation = self._lead(config, baseline)
        return speedup_of(baseline, lead, confidence.deviations() * deviation)

    def likeliest(
        self,
        among: Collection[FitConfig],
        replaced: FitConfig | None,
        baseline: FitConfig,
        tolerance: float,
    ) -> FitConfig:
        """Return the likeliest best config of those that are likely faster than the replaced one.

        Of several about as fast, it is the one nearest to the baseline.
        """
        rates = {
            config: self.rate(config)[0]
            for config in among
            if replaced in (None, config)
            or self.probability(config, replaced) >= LIKELY
        }
        if replaced is not None:
            rates[replaced] = self.rate(replaced)[0]
        return nearest(rates, tolerance, baseline)

    def _lead(self, config: FitConfig, other: FitConfig) -> tuple[float, float]:
        leads, deviations = self._predicted.lead_over(self._index[other])
        index = self._index[config]
        return float(leads[index]), float(deviations[index])


class Choice(NamedTuple):
    """What is to be delivered: the fastest config, and that of the own batch size.

    The latter is None if no trial of that batch size may be chosen.
    """

    own: FitConfig | None
    fastest: FitConfig
    beliefs: Beliefs


def baseline_outcome(problem: Problem, readings: Sequence[Trial]) -> Outcome:
    """Return how the runs of the baseline ended: `OK`, or how the first that failed did."""
    outcomes = (t.measurement.outcome for t in readings if t.config == problem.baseline)
    return next(
        (outcome for outcome in outcomes if outcome is not Outcome.OK), Outcome.OK
    )


def choose(
    problem: Problem,
    readings: Sequence[Trial],
    shown: Shown = NOTHING_SHOWN,
    *,
    has_run: bool = False,
) -> Choice | None:
    """Choose the answers by all readings; None if no config that ran may be chosen.

    What is `shown` to lose is not chosen, and what still stands there is only replaced by what is
    likely faster. The baseline may be chosen before it has run, unless `has_run` is asked for.
    """
    baseline = problem.baseline
    is_in_space = baseline in problem.space
    fitting = {trial.config for trial in failures.eligible(readings, problem.context)}
    among = fitting if is_in_space else fitting - {baseline}
    if not among:
        return None
    configs = dict.fromkeys([*sorted(among, key=str), baseline])
    beliefs = Beliefs(rated_trials(readings), configs, problem.context)
    if problem.request.settings.batch_size == LARGEST:
        # without a comparison
        largest = max(among, key=lambda config: config.batch_size or 1)
        return Choice(largest, largest, beliefs)
    may_win = is_in_space and baseline_outcome(problem, readings) is Outcome.OK
    replaced = baseline if may_win and (baseline in fitting or not has_run) else None
    if replaced is not None:
        among = among | {replaced}
    among = among - shown.beaten or among
    tolerance = problem.request.settings.options.tolerance

    def likeliest(among: set[FitConfig], replaced: FitConfig | None) -> FitConfig:
        if standing := among & shown.standing:
            replaced = beliefs.likeliest(standing, replaced, baseline, tolerance)
        return beliefs.likeliest(among, replaced, baseline, tolerance)

    own_configs = {config for config in among if config.batch_size == problem.own_batch}
    if problem.own_batch is None or not own_configs:
        fastest = likeliest(among, replaced)
        return Choice(None if problem.own_batch else fastest, fastest, beliefs)
    own = likeliest(own_configs, replaced)
    return Choice(own, likeliest(among, own), beliefs)
