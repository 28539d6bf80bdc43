"""The gap between epochs on other backends, and of the data of other libraries."""

import pytest

from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.worker.step_clock import STREAM, UNKNOWN
from tests import epochs as e
from tests import workloads as w
from tests.backends import loaders
from tests.fakes import drain


def confirmed(launcher, config):
    """A confirming run that reads the gap."""
    known = {"compute_samples_per_second": 50 * e.RATE, "input_samples_per_second": e.RATE, "longest_epoch_seconds": 500.0}
    measured = drain(launcher.run(TrialSpec(Role.CONFIRM, config, Limits(None, 2**33), 600, 1.5, **known)))[1]
    assert measured.outcome is Outcome.OK, measured
    return measured


def test_the_workers_of_a_loader_start_in_each_epoch(launched):
    measured = confirmed(launched(e.build_model, e.loader, data_kwargs={"length": e.LONG}), FitConfig(None, 1))
    assert measured.epoch_samples == e.LONG * e.BATCH
    assert e.includes_the_start(measured, e.LONG)


@pytest.mark.parametrize(("data", "reason"), [(loaders.stream, UNKNOWN), (loaders.counted_stream, STREAM)])
def test_the_gap_of_a_stream_is_not_read(launched, data, reason):
    assert confirmed(launched(w.build_model, data), FitConfig(8)).epoch_gap_unread == reason
