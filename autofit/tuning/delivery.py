"""Choose the configs that a tune delivers: the likeliest best by all readings, if it is likely faster than what it replaces.

    readings ──> Beliefs: the posterior of all rates, and of their differences
                    │ likeliest best at the own batch size ── P(faster than the baseline) ≥ 0.8 ──> the own answer
                    │ likeliest best of all ───────── P(faster than the own answer) ≥ 0.8 ────────> the fastest
                    └ otherwise what would be replaced stays

Runs beside each other decide what is *claimed*; a gain need not be shown to reach the user. By whole tunes on jobs of known
truth (tests/benchmarks/whole_tunes.py), 0.8 delivers nearly as much as no threshold, and where there is nothing to gain,
0.999 of the baseline's rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from scipy.special import ndtr

from autofit.records.result import Speedup
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.rates import Rates
from autofit.search.space import nearest

LIKELY = 0.8  # probability of being faster with which a config replaces another
_NORMAL_95 = 1.96  # standard deviations on either side of the mean that hold 95 % of a Gaussian


class Beliefs:
    """What the readings say of the rates of some configs: a Gaussian posterior of their logarithms."""

    def __init__(
        self, readings: Sequence[Trial], configs: Collection[FitConfig], context: SearchContext
    ) -> None:
        self._index = {config: number for number, config in enumerate(configs)}
        arrays = ConfigArrays(list(configs), context.cores)
        self._predicted = Rates(readings, context).predict(arrays)

    def rate(self, config: FitConfig) -> tuple[float, float]:
        """Return the rate of a config in samples/s, and the half-width of its 95 % interval relative to it."""
        index = self._index[config]
        deviation = float(self._predicted.deviation[index])
        return math.exp(self._predicted.mean[index]), math.expm1(_NORMAL_95 * deviation)

    def rates(self) -> dict[FitConfig, float]:
        """Return the rates of all configs, in samples/s."""
        return {config: self.rate(config)[0] for config in self._index}

    def probability(self, config: FitConfig, other: FitConfig) -> float:
        """Return the probability that a config is faster than another."""
        lead, deviation = self._lead(config, other)
        return float(ndtr(lead / deviation)) if deviation else float(lead > 0)

    def speedup(self, config: FitConfig, baseline: FitConfig) -> Speedup:
        """Return how many times as fast as the baseline a config is, with the 95 % interval; it is not shown by pairs."""
        lead, deviation = self._lead(config, baseline)
        ends = (lead - _NORMAL_95 * deviation, lead + _NORMAL_95 * deviation)
        low, high = map(math.exp, ends)
        return Speedup(baseline, Outcome.OK, math.exp(lead), low, high)

    def _lead(self, config: FitConfig, other: FitConfig) -> tuple[float, float]:
        leads, deviations = self._predicted.lead_over(self._index[other])
        index = self._index[config]
        return float(leads[index]), float(deviations[index])


def delivered(
    beliefs: Beliefs,
    among: Collection[FitConfig],
    replaced: FitConfig | None,
    baseline: FitConfig,
    tolerance: float,
) -> FitConfig:
    """Return the likeliest best `among` some configs, nearest to the baseline, or the config that it does not replace."""
    rates = {config: rate for config, rate in beliefs.rates().items() if config in among}
    best = nearest(rates, tolerance, baseline)
    if replaced is None or beliefs.probability(best, replaced) >= LIKELY:
        return best
    return replaced
