"""Tunes of the made-up launcher that the tests of this folder draw."""

from dataclasses import replace

import pytest

from autofit.errors import NothingFitsError
from autofit.records.result import Usage
from autofit.records.trial import Outcome
from autofit.tuning.tuner import tune
from tests.fakes import MIB, FakeLauncher, drain, make_request

USAGE = Usage(
    imports=("from photos import Photos, build_model",),
    model="build_model(width=8)",
    data="Photos",
    data_kwargs={"folder": "photos"},
    validation="Photos",
    validation_kwargs={"part": "validation"},
)
TIMES = {"started_at": 1e9, "seconds": 125.0, "describing_seconds": 8.0}
"""In place of what the clock says."""


@pytest.fixture(scope="package")
def events_and_record(tmp_path_factory):
    """A tune under a device limit, with trials that ran out of memory."""
    request = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB, max_trials=10, usage=USAGE)
    events, record = drain(tune(request, FakeLauncher(cliff=64)))
    assert any(trial.measurement.outcome is Outcome.DEVICE_OOM for trial in record.trials)
    return events, replace(record, **TIMES)


@pytest.fixture(scope="package")
def record(events_and_record):
    """The record of that tune."""
    return events_and_record[1]


@pytest.fixture(scope="package")
def failed_tune(tmp_path_factory):
    """A tune in which nothing fits."""
    request = make_request(tmp_path_factory.mktemp("none"), device_bytes=10 * MIB)
    with pytest.raises(NothingFitsError) as caught:
        drain(tune(request, FakeLauncher()))
    return replace(caught.value.seen, **TIMES)
