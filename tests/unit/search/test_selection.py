import itertools
from dataclasses import replace

import pytest

from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.failures import eligible
from autofit.search.space import distance, nearest
from autofit.tuning.record import decide_bottleneck

LIMITS = Limits(device_bytes=100, host_bytes=1000)
BASELINE = FitConfig(32, 2, 10, False)


def trial(batch, rate=None, outcome=Outcome.OK, device=50, host=500):
    peaks = {"device_peak_bytes": device, "host_peak_bytes": host}
    return Trial(FitConfig(batch, 2, 10, False), Measurement(outcome, Evidence("x"), samples_per_second=rate, **peaks))


def batches(*rates):
    return {FitConfig(batch): rate for batch, rate in rates}


@pytest.mark.parametrize(
    ("rates", "tolerance", "baseline", "chosen"),
    [
        (batches((4, 99.5), (32, 90), (64, 99), (128, 100), (256, 100.5)), 0.02, 32, 64),
        (batches((4, 99.5), (32, 90), (64, 99), (128, 100), (256, 100.5)), 0.02, 200, 256),
        (batches((4, 99.5), (32, 90), (64, 99), (128, 100), (256, 100.5)), 0.0, 32, 256),
        (batches((4, 100), (32, 100), (64, 100)), 0.02, 32, 32),
        (batches((4, 100), (64, 100)), 0.02, 32, 64),
        (batches((16, 100), (64, 100)), 0.02, 32, 16),  # at equal distance, the cheaper one
    ],
)
def test_the_nearest_to_the_baseline_within_the_tolerance_is_chosen(rates, tolerance, baseline, chosen):
    assert nearest(rates, tolerance, FitConfig(baseline)) == FitConfig(chosen)


def test_a_config_over_a_limit_or_that_failed_once_may_not_be_chosen():
    good, failed = trial(32, 90), [trial(48, outcome=Outcome.DEVICE_OOM)]
    others = [trial(40, 200, device=101), trial(40, 200, host=1001), trial(48, 200)]
    assert eligible([good, *others, *failed], LIMITS) == [good]


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


def test_the_bottleneck_follows_from_the_three_rates():
    assert decide_bottleneck(98, 100, 1000) == "compute"
    assert decide_bottleneck(98, 1000, 100) == "input"
    assert decide_bottleneck(50, 100, 110) == "contention"
    assert decide_bottleneck(90, 100, 95) == "input"
