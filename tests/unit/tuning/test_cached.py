"""Stored results and trials: which are still valid in a later tune."""

import contextlib
import resource

import pytest
from optuna.study import StudyDirection

from autofit.api.result import Result
from autofit.errors import NothingFitsError, UsageError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement, Trial
from autofit.storage import codec, connection
from tests.fakes import MIB, FakeLauncher, collect, make_request, tune, tuned

FEW = {
    "batch_size": [64, 128, 256],
    "workers": [2, 4],
    "max_queue_size": [10],
    "use_multiprocessing": [False],
}
SHARES = {
    "device_memory": "90%",
    "host_memory": "80%",
    "space": {
        "batch_size": [8, 16, 32, 64, 256],
        "workers": [4],
        "max_queue_size": [10],
        "use_multiprocessing": [False],
    },
}


def under(device_mib):
    return {**SHARES, "limits": Limits(device_mib * MIB, 8192 * MIB)}


def test_an_answer_holds_while_it_fits_and_the_limit_has_hardly_grown(tmp_path):
    held_back = tuned(tmp_path, **under(80))
    assert tuned(tmp_path, **under(82)).started_at == held_back.started_at
    assert (
        tuned(tmp_path, **under(4096)).samples_per_second
        > 1.3 * held_back.samples_per_second
    )
    assert tuned(tmp_path, **under(40)).device_peak_bytes <= 40 * MIB


def test_what_ran_out_of_less_memory_than_there_is_now_does_not_count(tmp_path):
    with pytest.raises(NothingFitsError):
        tuned(tmp_path, **under(5))
    record = tuned(tmp_path, **under(4096))
    assert record.config.batch_size > 80
    assert all(trial.measurement.outcome is Outcome.OK for trial in record.trials)


def told(events, text):
    return [event for event in events if isinstance(event, str) and text in event]


def test_a_tune_whose_study_is_deleted_meanwhile_goes_on_and_says_so(tmp_path):
    where = f"sqlite:///{tmp_path}/t.db"
    request = make_request(tmp_path, storage=where, space=FEW, max_trials=3)

    class Forgets(FakeLauncher):
        def measure(self, spec):
            if len(self.specs) == 3:
                with connection.opened(where) as backend, contextlib.suppress(KeyError):
                    backend.delete_study(
                        backend.get_study_id_from_name(request.fingerprint())
                    )
                    backend.create_new_study(
                        [StudyDirection.MAXIMIZE], "another"
                    )  # SQLite gives it the same id
            return super().measure(spec)

    events, record = collect(tune, request, Forgets())
    assert len(told(events, "optuna delete-study")) == 1
    assert record.speedup.ratio > 1
    with connection.opened(where) as backend:
        assert [study.study_name for study in backend.get_all_studies()] == ["another"]
        assert backend.get_n_trials(backend.get_study_id_from_name("another")) == 0


@pytest.mark.parametrize("kind", ["journal:{}/t.log", "sqlite:///{}/t.db"])
def test_a_tune_whose_storage_fills_up_goes_on_and_keeps_its_trials(
    tmp_path, kind, monkeypatch
):
    monkeypatch.setattr(
        "optuna.storages._rdb.storage.random.random", lambda: 0.0
    )  # it waits between attempts
    where = kind.format(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fills(FakeLauncher):
        def measure(self, spec):
            if len(self.configs("measure")) == 2:
                largest = max(file.stat().st_size for file in tmp_path.iterdir())
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, limit[1]))
            return super().measure(spec)

    try:
        events, record = collect(
            tune,
            make_request(tmp_path, storage=where, space=FEW, max_trials=3),
            Fills(),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    (notice,) = told(events, "cannot be stored")
    assert (
        "This tune goes on, but a later one must run again what is not stored" in notice
    )
    assert [trial.number for trial in record.trials] == list(range(len(record.trials)))
    assert record.speedup.ratio > 1
    launcher = FakeLauncher()
    assert (
        tuned(tmp_path, launcher, storage=where, space=FEW, max_trials=3).trials[0]
        == record.trials[0]
    )
    assert len(launcher.configs("measure")) >= 2


@pytest.mark.parametrize("memory", ["host", "device"])
def test_a_result_that_failed_in_training_is_not_given_again(tmp_path, memory):
    asked = {
        "storage": f"journal:{tmp_path}/t.log",
        "limits": Limits(4096 * MIB, 4096 * MIB),
        "space": FEW,
    }
    results = []
    for _ in range(3):
        record = tuned(tmp_path, **asked)
        again = FakeLauncher()
        results.append(record)
        assert tuned(tmp_path, again, **asked).config == record.config
        assert again.specs == []  # also if a result failed before
        for failed in reversed(
            results
        ):  # saying it of an older one again changes nothing
            Result(**vars(failed)).failed(memory, asked["storage"])
    assert len({result.config for result in results}) == 3
    peaks = [getattr(result, f"{memory}_peak_bytes") for result in results]
    assert peaks == sorted(peaks, reverse=True)
    ooms = {
        trial.config
        for trial in record.trials
        if trial.measurement.outcome is Outcome(f"{memory}_oom")
    }
    assert ooms == {result.config for result in results[:2]}
    assert tuned(tmp_path, **asked, fresh=True).config == results[0].config
    with pytest.raises(
        UsageError,
        match=r"u\.log does not have the tune .*: give the storage of that tune",
    ):
        Result(**vars(record)).failed(memory, f"journal:{tmp_path}/u.log")


@pytest.mark.parametrize("memory", ["host", "device"])
def test_where_a_result_that_failed_leaves_nothing_the_error_says_whose_limit_that_is(
    tmp_path, memory
):
    asked = {
        "storage": f"journal:{tmp_path}/t.log",
        "limits": Limits(4096 * MIB, 4096 * MIB),
        "space": {**FEW, "batch_size": [64], "workers": [2]},
        "baseline": {"batch_size": 64, "workers": 2},
    }
    result = Result(**vars(tuned(tmp_path, **asked)))
    result.failed(memory, asked["storage"])
    with pytest.raises(
        NothingFitsError, match=r"in your training \(show --failed\).*--fresh"
    ):
        tuned(tmp_path, **asked)
    assert tuned(tmp_path, **asked, fresh=True).config == result.config


def test_what_finished_under_higher_limits_is_said_to_need_more_than_there_is(tmp_path):
    only = {**SHARES, "space": {**SHARES["space"], "batch_size": [64]}}
    tuned(tmp_path, **{**only, "limits": Limits(None, 8192 * MIB)}, max_trials=1)
    with pytest.raises(NothingFitsError, match=r"more than .* MiB of host memory"):
        tuned(tmp_path, **{**only, "limits": Limits(None, 110 * MIB)}, max_trials=1)


def test_a_stored_trial_that_finished_without_a_rate_is_damaged_and_does_not_count():
    damaged = Trial(FitConfig(64), Measurement(Outcome.OK, Evidence("finished")))
    limits = Limits(None, 8192 * MIB)
    assert not list(codec.stored_trials([codec.frozen_trial(damaged, limits, {})]))
