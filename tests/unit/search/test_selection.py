import math

from hypothesis import given
from hypothesis import strategies as st

from autofit.records.result import FrontierPoint
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.frontier import frontier
from autofit.search.selection import choose, finalists
from autofit.search.space import cost
from autofit.tuning.record import decide_bottleneck

LIMITS = Limits(device_bytes=100, host_bytes=1000)


def trial(batch, rate=None, outcome=Outcome.OK, device=50, host=500, workers=2):
    measurement = Measurement(
        outcome, Evidence("x"), samples_per_second=rate, device_peak_bytes=device, host_peak_bytes=host
    )
    return Trial(FitConfig(batch, workers, 10, False), measurement)


def test_the_cheapest_within_the_tolerance_is_chosen():
    trials = [trial(32, 90), trial(64, 99), trial(128, 100), trial(256, 100.5)]
    assert choose(trials, LIMITS, 0.02).config.batch_size == 64
    assert choose(trials, LIMITS, 0.0).config.batch_size == 256


def test_what_is_over_a_limit_is_not_chosen():
    assert choose([trial(32, 90), trial(64, 200, device=101)], LIMITS, 0.02).config.batch_size == 32
    assert choose([trial(32, 90), trial(64, 200, host=1001)], LIMITS, 0.02).config.batch_size == 32


def test_a_config_that_failed_once_is_out():
    trials = [trial(32, 90), trial(64, 200), trial(64, outcome=Outcome.DEVICE_OOM)]
    assert choose(trials, LIMITS, 0.02).config.batch_size == 32
    assert choose(trials[1:], LIMITS, 0.02) is None


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(1, 1000)), min_size=1), st.floats(0, 0.5))
def test_the_choice_is_near_the_best_and_none_near_is_cheaper(rates, tolerance):
    trials = [trial(batch, rate) for batch, rate in rates]
    best = max(rate for _, rate in rates)
    chosen = choose(trials, LIMITS, tolerance)
    near = [t for t in trials if t.measurement.samples_per_second >= (1 - tolerance) * best]
    assert chosen in near
    assert all(cost(chosen.config) <= cost(t.config) for t in near)


def test_the_frontier_names_the_largest_that_fits_and_the_smallest_that_does_not():
    trials = [trial(32, 90), trial(64, 95), trial(128, outcome=Outcome.DEVICE_OOM), trial(256, outcome=Outcome.TIMEOUT)]
    trials += [trial(16, 80, workers=4)]
    assert set(frontier(trials, LIMITS)) == {
        FrontierPoint(FitConfig(None, 2, 10, False), 64, 128),
        FrontierPoint(FitConfig(None, 4, 10, False), 16, None),
    }


def test_the_bottleneck_follows_from_the_three_rates():
    assert decide_bottleneck(98, 100, 1000) == "compute"
    assert decide_bottleneck(98, 1000, 100) == "input"
    assert decide_bottleneck(50, 100, 110) == "contention"
    assert decide_bottleneck(90, 100, 95) == "input"
    assert decide_bottleneck(90, None, None) == "unknown"


def test_finalists_are_those_that_noise_leaves_open():
    trials = [trial(b, rate) for b, rate in ((8, 100), (16, 103), (32, 104), (64, 60), (128, 104.5))]
    sure = {t.config: (math.log(t.measurement.samples_per_second), 0.002) for t in trials}
    unsure = {config: (mean, 0.03) for config, (mean, _) in sure.items()}
    assert [t.config.batch_size for t in finalists(trials, LIMITS, 0.02, sure)] == [16]
    last = [t.config.batch_size for t in finalists(trials, LIMITS, 0.02, unsure)]
    assert last == [128, 32, 16]
    assert finalists([], LIMITS, 0.02, {}) == ()


def test_an_estimated_rate_replaces_a_single_reading():
    trials = [trial(8, 100), trial(16, 130)]
    assert choose(trials, LIMITS, 0.02).config.batch_size == 16
    assert choose(trials, LIMITS, 0.02, {trials[1].config: 101.0}).config.batch_size == 8
