"""What runs beside each other show of the answers: rounds of one run of each and of the baseline.

Only these runs enter an interval, because nothing that led to the choice may: the reading that made
a config the likeliest best is the highest of many, and so too high. The order is reversed in every
second round, and the rounds are looked at once. In whole tunes of known truth, 0.4 % call a config
faster that is not, and 96 % of the intervals contain the true ratio
(tests/benchmarks/whole_tunes.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autofit.records.intervals import welch_interval
from autofit.records.knobs import FitConfig
from autofit.records.result import Speedup
from autofit.records.states import Outcome

Round = Mapping[FitConfig, float]  # rates in samples/s


class Claim(NamedTuple):
    """The rounds that ran, and why no other run was worth its time before them."""

    rounds: Sequence[Round] = ()
    reason: str = ""


NONE = Claim()


def order(configs: Sequence[FitConfig], number: int) -> tuple[FitConfig, ...]:
    """Return the configs in the order of a round; `number` counts the rounds from 0."""
    return tuple(configs) if number % 2 else tuple(configs)[::-1]


def log_rates(config: FitConfig, rounds: Sequence[Round]) -> list[float]:
    """Return the logarithms of what a config read in each round that has it."""
    return [math.log(rates[config]) for rates in rounds if config in rates]


def speedup(
    config: FitConfig, baseline: FitConfig, rounds: Sequence[Round]
) -> Speedup | None:
    """Return the rate of a config relative to the baseline, by runs beside each other, if any."""
    logs = log_rates(config, rounds)
    pairs = len(logs)
    if not pairs:
        return None
    return speedup_of(
        baseline, *welch_interval(logs, log_rates(baseline, rounds)), pairs
    )


def speedup_of(
    baseline: FitConfig, lead: float, half_width: float, pairs: int = 0
) -> Speedup:
    """Return the speedup of a lead in log rate, with its interval."""
    low = math.exp(lead - half_width)
    high = math.exp(lead + half_width)
    return Speedup(baseline, Outcome.OK, math.exp(lead), low, high, pairs)


class Shown(NamedTuple):
    """The configs that ran beside the baseline.

    The `beaten` ones gain less than the tolerance, the `standing` ones may gain more.
    """

    beaten: frozenset[FitConfig] = frozenset()
    standing: frozenset[FitConfig] = frozenset()

    @classmethod
    def by(
        cls, rounds: Sequence[Round], baseline: FitConfig, tolerance: float
    ) -> Shown:
        """Sort the configs of some rounds."""
        compared = {config for one in rounds for config in one if config != baseline}
        beaten = set()
        for config in compared:
            shown = speedup(config, baseline, rounds)
            if shown and (shown.high or 0.0) < 1 / (1 - tolerance):
                beaten.add(config)
        return cls(frozenset(beaten), frozenset(compared - beaten))


NOTHING_SHOWN = Shown()
