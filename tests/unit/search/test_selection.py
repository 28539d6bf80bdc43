import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.failures import eligible
from autofit.search.space import distance, nearest
from autofit.tuning.record import decide_bottleneck

LIMITS = Limits(device_bytes=100, host_bytes=1000)
BASELINE = FitConfig(32, 2, 10, False)


def trial(batch, rate=None, outcome=Outcome.OK, device=50, host=500, workers=2):
    measurement = Measurement(
        outcome, Evidence("x"), samples_per_second=rate, device_peak_bytes=device, host_peak_bytes=host
    )
    return Trial(FitConfig(batch, workers, 10, False), measurement)


def choose(trials, tolerance, baseline):
    """The config that is nearest to the baseline among those about as fast as the fastest that fits."""
    rates = {trial.config: trial.samples_per_second for trial in eligible(trials, LIMITS)}
    return nearest(rates, tolerance, baseline)


def test_the_nearest_to_the_baseline_within_the_tolerance_is_chosen():
    trials = [trial(4, 99.5), trial(32, 90), trial(64, 99), trial(128, 100), trial(256, 100.5)]
    assert choose(trials, 0.02, BASELINE).batch_size == 64
    assert choose(trials, 0.02, FitConfig(200, 2, 10, False)).batch_size == 256
    assert choose(trials, 0.0, BASELINE).batch_size == 256


def test_at_equal_speed_the_users_own_config_is_taken_and_no_smaller_batch():
    assert nearest({FitConfig(4): 100.0, FitConfig(32): 100.0, FitConfig(64): 100.0}, 0.02, FitConfig(32)) == FitConfig(32)
    assert nearest({FitConfig(4): 100.0, FitConfig(64): 100.0}, 0.02, FitConfig(32)) == FitConfig(64)
    tie = {FitConfig(16): 100.0, FitConfig(64): 100.0}
    assert nearest(tie, 0.02, FitConfig(32)) == FitConfig(16)


def test_the_distance_counts_the_batch_then_workers_then_processes_then_the_queue():
    farther = [
        BASELINE, FitConfig(32, 2, 4, False), FitConfig(32, 2, 10, True), FitConfig(32, 4, 10, False),
        FitConfig(32, 8, 10, False), FitConfig(40, 2, 10, False), FitConfig(64, 2, 10, False), FitConfig(4, 2, 10, False),
    ]  # fmt: skip  # one item a line would be longer, not clearer
    keys = [distance(config, BASELINE) for config in farther]
    assert all(nearer < key for nearer, key in itertools.pairwise(keys))
    without_queue = FitConfig(32, 1, 10, False)
    assert not any(distance(replace(without_queue, workers=0, max_queue_size=2), without_queue))
    assert distance(FitConfig(32, -1, 10), BASELINE)[1] == 1.0


@given(*[st.builds(FitConfig, st.integers(1, 9999), st.integers(-1, 64), st.integers(-1, 99), st.booleans())] * 2)
def test_a_config_is_nearest_to_itself_and_the_distance_is_symmetric(config, other):
    assert not any(distance(config, config))
    assert distance(config, other) == pytest.approx(distance(other, config))


def test_what_is_over_a_limit_is_not_chosen():
    assert choose([trial(32, 90), trial(64, 200, device=101)], 0.02, BASELINE).batch_size == 32
    assert choose([trial(32, 90), trial(64, 200, host=1001)], 0.02, BASELINE).batch_size == 32


def test_a_config_that_failed_once_is_out():
    trials = [trial(32, 90), trial(64, 200), trial(64, outcome=Outcome.DEVICE_OOM)]
    assert choose(trials, 0.02, BASELINE).batch_size == 32
    assert eligible(trials[1:], LIMITS) == []


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(1, 1000)), min_size=1), st.floats(0, 0.5))
def test_the_choice_is_near_the_best_and_none_near_is_nearer_to_the_baseline(rates, tolerance):
    rates = {FitConfig(batch, 2, 10, False): rate for batch, rate in rates}
    chosen = nearest(rates, tolerance, BASELINE)
    near = [config for config, rate in rates.items() if rate >= (1 - tolerance) * max(rates.values())]
    assert chosen in near
    assert all(distance(chosen, BASELINE) <= distance(config, BASELINE) for config in near)


def test_the_bottleneck_follows_from_the_three_rates():
    assert decide_bottleneck(98, 100, 1000) == "compute"
    assert decide_bottleneck(98, 1000, 100) == "input"
    assert decide_bottleneck(50, 100, 110) == "contention"
    assert decide_bottleneck(90, 100, 95) == "input"
