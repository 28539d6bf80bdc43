"""When pairs of runs decide, by the readings of both configs."""

import math

import numpy as np
import pytest

from autofit.records.intervals import pooled_half_width, sequential_interval
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.tuning.pairs import MOST_PAIRS, Pair

BASELINE, CHOSEN = FitConfig(32, 1, 10, False), FitConfig(128, 2, 10, False)
TOLERANCE = 0.02


def reading(rate):
    return Measurement(Outcome.OK, Evidence("finished"), 5.0, samples_per_second=rate)


def pair_of(chosen, baseline):
    pair = Pair(Trial(CHOSEN, reading(chosen[0])), BASELINE, rounds=len(chosen))
    pair.runs = {CHOSEN: [reading(rate) for rate in chosen], BASELINE: [reading(rate) for rate in baseline]}
    return pair


def test_the_interval_of_two_series_is_welchs():
    difference, half_width = sequential_interval([1.0, 3.0, 2.0], [1.0, 1.0, 1.0])
    assert difference == 1.0
    assert half_width == pytest.approx(5.6428 / math.sqrt(3), rel=1e-4)  # t of two degrees of freedom, 98.5 %
    alike = sequential_interval([1.0, 3.0, 2.0], [11.0, 13.0, 12.0])
    assert alike == (-10.0, pytest.approx(3.2978 * math.sqrt(2 / 3), rel=1e-4))  # of four


@pytest.mark.parametrize(("scatter", "most"), [(1.0, 0.065), (0.3, 0.095), (0.1, 0.105)])
def test_at_four_looks_few_intervals_exclude_the_true_difference_however_one_series_scatters(scatter, most):
    draws, wrong = np.random.default_rng(0).normal(size=(5_000, 2, 5)) * np.array([[1.0], [scatter]]), []
    for first, second in draws.tolist():
        looks = (sequential_interval(first[:count], second[:count]) for count in (2, 3, 4, 5))
        wrong.append(next((lead for lead, half_width in looks if abs(lead) > half_width), 0.0))
    assert sum(map(bool, wrong)) / len(draws) <= most
    assert sum(lead > 0 for lead in wrong) / len(draws) <= 0.055


def test_the_scatter_of_two_readings_is_that_of_all_runs():
    assert pooled_half_width([1.0, 3.0]) == pytest.approx(12.7062, rel=1e-4)
    assert pooled_half_width([1.0, 3.0], [11.0, 13.0]) == pytest.approx(4.3027, rel=1e-4)
    assert pooled_half_width([1.0, 3.0], [12.0]) == pytest.approx(12.7062, rel=1e-4)
    assert pooled_half_width([1.0], [2.0], []) == math.inf
    choice = pair_of([200, 210], [100, 98]).recommendation(TOLERANCE, Limits(None, 2**33), baseline_may_win=True)
    assert 0.05 < choice.spread < 0.1


def test_single_readings_have_no_interval_and_equal_ones_a_narrow_one():
    assert sequential_interval([1.0], [2.0]) == (-1.0, math.inf)
    assert sequential_interval([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("chosen", "baseline", "rounds"),
    [
        ([200, 210], [100, 98], 2),  # faster
        ([100, 100.02], [100, 99.98], 2),  # not by more than the tolerance
        ([50, 51], [100, 99], 2),  # slower
        ([150, 110], [100, 98], MOST_PAIRS),  # open
        ([150, 80], [100, 120], MOST_PAIRS),  # open, although slower so far
        ([150, 80, 100], [100, 120, 110], 2),  # slower so far, after three: not worth more
        ([150, 110, 120], [100, 98, 100], MOST_PAIRS),
        ([104, 150, 90], [100, 98, 101], 2),  # faster so far, but five pairs would hardly show it
        ([150], [100], MOST_PAIRS),  # no interval yet
    ],
)
def test_pairs_run_until_they_answer_whether_the_config_is_faster(chosen, baseline, rounds):
    assert pair_of(chosen, baseline).most_rounds(TOLERANCE) == rounds


@pytest.mark.parametrize(
    ("chosen", "baseline", "config"),
    [
        ([200, 210], [100, 98], CHOSEN),
        ([150, 110], [100, 98], BASELINE),
        ([101, 101.1], [100, 100.1], BASELINE),  # shown to be faster, by less than the tolerance
        ([150], [100], BASELINE),
    ],
)
def test_the_baseline_keeps_its_place_unless_a_gain_above_the_tolerance_is_shown(chosen, baseline, config):
    choice = pair_of(chosen, baseline).recommendation(TOLERANCE, Limits(None, 2**33), baseline_may_win=True)
    assert choice.config == config
