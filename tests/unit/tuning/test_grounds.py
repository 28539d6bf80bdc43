"""What decided against the config with the highest reading."""

import pytest

from autofit.records.result import DecidedBy, RateEstimate
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.tuning.grounds import grounds

CHOICE, OTHER = FitConfig(32), FitConfig(64)
LIMITS = Limits(None, 1000)
ESTIMATES = {CHOICE: RateEstimate(100.0, 0.03), OTHER: RateEstimate(101.0, 0.04)}
RERUNS = {OTHER: RateEstimate(99.0, 0.02)}


def ran(config, rate, stage=Stage.SEARCH, outcome=Outcome.OK, host=500):
    measurement = Measurement(outcome, Evidence(""), samples_per_second=rate, host_peak_bytes=host)
    return Trial(config, measurement, stage=stage)


@pytest.mark.parametrize(
    ("further", "reruns", "no_time", "decided_by", "estimate"),
    [
        ([], {}, (), DecidedBy.ESTIMATE, ESTIMATES[OTHER]),
        ([ran(OTHER, 105.0, Stage.FINALIST)], RERUNS, (), DecidedBy.RERUNS, RERUNS[OTHER]),
        ([ran(OTHER, 90.0, Stage.CHOSEN), ran(CHOICE, 95.0, Stage.BASELINE)], RERUNS, (), DecidedBy.CONFIRMATION, None),
        ([ran(OTHER, None, Stage.CHOSEN, Outcome.HOST_OOM)], RERUNS, (), DecidedBy.FAILURE, None),
        ([ran(OTHER, 90.0, Stage.FINALIST, host=1001)], {}, (), DecidedBy.FAILURE, None),
        ([], {}, (OTHER,), DecidedBy.TIME, None),
    ],
)
def test_what_decided_is_named(further, reruns, no_time, decided_by, estimate):
    trials = [ran(CHOICE, 100.0), ran(OTHER, 120.0), *further]
    found = grounds(CHOICE, trials, LIMITS, 0.02, ESTIMATES, reruns, no_time)
    assert (found.passed_over, found.reading_samples_per_second, found.stage) == (OTHER, 120.0, Stage.SEARCH)
    assert (found.decided_by, found.estimate) == (decided_by, estimate)
    assert (found.chosen_estimate is None) == (estimate is None)


def test_a_choice_with_the_highest_reading_has_no_grounds():
    assert grounds(CHOICE, [ran(CHOICE, 121.0), ran(OTHER, 120.0)], LIMITS, 0.02, ESTIMATES, {}) is None
    confirmed = [ran(CHOICE, 100.0), ran(OTHER, 120.0), ran(CHOICE, 130.0, Stage.CHOSEN)]
    assert grounds(CHOICE, confirmed, LIMITS, 0.02, ESTIMATES, {}) is None
