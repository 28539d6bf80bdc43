"""What is kept of the user's own trainings, and what the next tune learns from it."""

import os
from dataclasses import replace

import psutil
import pytest

from autofit.records.events import Notice
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from autofit.storage import trainings
from autofit.storage.trainings import Training
from tests.fakes import FakeLauncher, collect, make_request, tune

SPACE = {"batch_size": [32, 256], "workers": [4]}
GIB = 2**30


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def of(study, **changes):
    now = psutil.Process().create_time()
    return replace(Training(study, FitConfig(256), 1.8e9, os.getpid(), now, seconds=60.0), **changes)


def test_the_latest_are_kept_by_study(tmp_path):
    for started in range(25):
        trainings.keep(of("one", started_at=float(started)))
    trainings.keep(of("two", started_at=99.0))
    assert [each.started_at for each in trainings.of("two")] == [99.0]
    assert [each.started_at for each in trainings.of("one")] == [float(each) for each in range(6, 25)]
    (file, *_) = (tmp_path / "data").rglob("one-*.json")
    file.write_text("{")
    assert len(trainings.of("one")) == 18
    trainings.forget(trainings.of("two")[0])
    assert trainings.of("two") == ()


def test_only_a_sudden_end_with_full_memory_is_out_of_memory():
    gone = {"created_at": 1.0, "host_bytes": 97 * GIB, "host_limit_bytes": 100 * GIB}
    assert of("one", **gone).ran_out_of_memory
    assert not of("one", **gone | {"created_at": psutil.Process().create_time()}).ran_out_of_memory  # still runs
    assert not of("one", **gone, ended=True).ran_out_of_memory
    assert not of("one", **gone | {"host_bytes": 80 * GIB}).ran_out_of_memory
    assert not of("one", created_at=1.0).ran_out_of_memory


def notices(events):
    return [event.text for event in events if isinstance(event, Notice)]


def test_the_next_tune_names_the_last_training(tmp_path):
    request = make_request(tmp_path, space=SPACE)
    _, record = collect(tune, request, FakeLauncher())
    assert record.study == request.fingerprint()
    trainings.keep(of(record.study, ended=True, rate_ratio=0.98, host_ratio=0.97))
    text = "the training ran at 0.98 of the promised rate, host memory at 0.97 of the promised peak"
    stored, again = collect(tune, request, FakeLauncher())
    assert again == record
    assert any(text in each for each in notices(stored))
    fresh, _ = collect(tune, make_request(tmp_path, space=SPACE, max_trials=5), FakeLauncher())
    assert any(text in each for each in notices(fresh))


def test_a_training_that_ran_out_of_memory_is_evidence(tmp_path):
    request = make_request(tmp_path, space=SPACE)
    _, record = collect(tune, request, FakeLauncher())
    assert record.config.batch_size == 256
    died = {"created_at": 1.0, "host_bytes": 97 * GIB, "host_limit_bytes": 100 * GIB}
    trainings.keep(of(record.study, config=record.config, **died))
    events, again = collect(tune, request, FakeLauncher())
    assert again.config != record.config
    assert any("ended suddenly while it held 97.0 GiB of 100 GiB" in text for text in notices(events))
    (trial,) = (trial for trial in again.trials if trial.why == "your own training")
    assert (trial.config, trial.measurement.outcome) == (record.config, Outcome.HOST_OOM)
    assert trainings.of(record.study) == ()
