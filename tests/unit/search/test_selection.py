import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.records.result import DecidedBy, PassedOver
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.selection import choose, finalists, nearest, overlooked, passed_over
from autofit.search.space import distance
from autofit.tuning.record import decide_bottleneck

LIMITS = Limits(device_bytes=100, host_bytes=1000)
BASELINE = FitConfig(32, 2, 10, False)


def trial(batch, rate=None, outcome=Outcome.OK, device=50, host=500, workers=2):
    measurement = Measurement(
        outcome, Evidence("x"), samples_per_second=rate, device_peak_bytes=device, host_peak_bytes=host
    )
    return Trial(FitConfig(batch, workers, 10, False), measurement)


def test_the_nearest_to_the_baseline_within_the_tolerance_is_chosen():
    trials = [trial(4, 99.5), trial(32, 90), trial(64, 99), trial(128, 100), trial(256, 100.5)]
    assert choose(trials, LIMITS, 0.02, BASELINE).config.batch_size == 64
    assert choose(trials, LIMITS, 0.02, FitConfig(200, 2, 10, False)).config.batch_size == 256
    assert choose(trials, LIMITS, 0.0, BASELINE).config.batch_size == 256


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
    assert choose([trial(32, 90), trial(64, 200, device=101)], LIMITS, 0.02, BASELINE).config.batch_size == 32
    assert choose([trial(32, 90), trial(64, 200, host=1001)], LIMITS, 0.02, BASELINE).config.batch_size == 32


def test_a_config_that_failed_once_is_out():
    trials = [trial(32, 90), trial(64, 200), trial(64, outcome=Outcome.DEVICE_OOM)]
    assert choose(trials, LIMITS, 0.02, BASELINE).config.batch_size == 32
    assert choose(trials[1:], LIMITS, 0.02, BASELINE) is None


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(1, 1000)), min_size=1), st.floats(0, 0.5))
def test_the_choice_is_near_the_best_and_none_near_is_nearer_to_the_baseline(rates, tolerance):
    trials = [trial(batch, rate) for batch, rate in rates]
    best = max(rate for _, rate in rates)
    chosen = choose(trials, LIMITS, tolerance, BASELINE)
    near = [t for t in trials if t.measurement.samples_per_second >= (1 - tolerance) * best]
    assert chosen in near
    assert all(distance(chosen.config, BASELINE) <= distance(t.config, BASELINE) for t in near)


def test_the_bottleneck_follows_from_the_three_rates():
    assert decide_bottleneck(98, 100, 1000) == "compute"
    assert decide_bottleneck(98, 1000, 100) == "input"
    assert decide_bottleneck(50, 100, 110) == "contention"
    assert decide_bottleneck(90, 100, 95) == "input"


def test_finalists_are_those_that_noise_leaves_open():
    trials = [trial(b, rate) for b, rate in ((8, 100), (16, 103), (32, 104), (64, 60), (128, 104.5))]
    sure = {t.config: (math.log(t.measurement.samples_per_second), 0.002) for t in trials}
    unsure = {config: (mean, 0.03) for config, (mean, _) in sure.items()}
    assert [t.config.batch_size for t in finalists(trials, LIMITS, 0.02, FitConfig(16), sure)] == [16]
    last = [t.config.batch_size for t in finalists(trials, LIMITS, 0.02, FitConfig(16), unsure)]
    assert last == [128, 32, 16]
    noisy = [replace(t, measurement=replace(t.measurement, spread=0.6)) for t in trials]
    assert len(finalists(noisy, LIMITS, 0.02, FitConfig(16), unsure)) == 1  # one more run would show nothing
    assert finalists([], LIMITS, 0.02, BASELINE, {}) == ()


def test_an_estimated_rate_replaces_a_single_reading():
    trials = [trial(8, 100), trial(16, 130)]
    assert choose(trials, LIMITS, 0.02, FitConfig(8)).config.batch_size == 16
    assert choose(trials, LIMITS, 0.02, FitConfig(8), {trials[1].config: 101.0}).config.batch_size == 8


def ran(config, rate, stage=Stage.SEARCH, outcome=Outcome.OK, host=500):
    measurement = Measurement(outcome, Evidence(""), samples_per_second=rate, host_peak_bytes=host)
    return Trial(config, measurement, stage=stage)


CHOICE, OTHER = FitConfig(32), FitConfig(64)


@pytest.mark.parametrize(
    ("further", "no_time", "decided_by"),
    [
        ([], (), DecidedBy.READINGS),
        ([ran(OTHER, 105.0, Stage.FINALIST)], (), DecidedBy.READINGS),
        ([ran(OTHER, 90.0, Stage.CHOSEN), ran(CHOICE, 95.0, Stage.BASELINE)], (), DecidedBy.CONFIRMATION),
        ([ran(OTHER, None, Stage.CHOSEN, Outcome.HOST_OOM)], (), DecidedBy.FAILURE),
        ([ran(OTHER, 90.0, Stage.FINALIST, host=1001)], (), DecidedBy.FAILURE),
        ([], (OTHER,), DecidedBy.TIME),
    ],
)
def test_what_decided_against_the_highest_reading_is_named(further, no_time, decided_by):
    trials = [ran(CHOICE, 100.0), ran(OTHER, 120.0), *further]
    assert passed_over({CHOICE}, trials, LIMITS, no_time) == PassedOver(OTHER, 120.0, decided_by)


def test_a_choice_with_the_highest_reading_passes_nothing_over():
    assert passed_over({CHOICE}, [ran(CHOICE, 121.0), ran(OTHER, 120.0)], LIMITS, ()) is None
    confirmed = [ran(CHOICE, 100.0), ran(OTHER, 120.0), ran(CHOICE, 130.0, Stage.CHOSEN)]
    assert passed_over({CHOICE}, confirmed, LIMITS, ()) is None
    assert passed_over({CHOICE, OTHER}, [ran(CHOICE, 100.0), ran(OTHER, 120.0)], LIMITS, ()) is None  # a baseline was kept


def test_a_confirmed_rate_that_noise_explains_is_left_alone():
    def reading(batch, rate, spread):
        measured = Measurement(Outcome.OK, Evidence(""), samples_per_second=rate, spread=spread)
        return Trial(FitConfig(batch, 1, 10, False), measured)

    trials = [reading(32, 1000.0, 0.02), reading(64, 1130.0, 0.02), reading(128, 1400.0, 0.5)]
    chosen = trials[0].config
    assert overlooked(trials, LIMITS, {chosen}, 1000.0, 0.02) is None
    assert overlooked(trials, LIMITS, {chosen}, 700.0, 0.02) in trials[1:]
    assert overlooked(trials, LIMITS, {trial.config for trial in trials}, 700.0, 0.02) is None
