"""Stored results and trials: which are still valid in a later tune."""

import contextlib
import resource
from dataclasses import replace

import pytest

from autofit.api.result import Result
from autofit.errors import NothingFitsError, NoTrialFinishedError, UsageError
from autofit.records.events import Notice
from autofit.records.result import CallSource
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.storage import connection
from tests.fakes import MIB, FakeLauncher, collect, make_request, tune

BUSY, FREE = {"limits": Limits(80 * MIB, 8192 * MIB)}, {"limits": Limits(4096 * MIB, 8192 * MIB)}
SHARES = {"device_memory": "90%", "host_memory": "80%", "max_trials": 10}


def test_an_answer_that_the_limit_held_back_is_not_given_again_when_there_is_more(tmp_path):
    held_back = collect(tune, make_request(tmp_path, **SHARES, **BUSY), FakeLauncher())[1]
    little_more = {"limits": Limits(82 * MIB, 8192 * MIB)}
    same = collect(tune, make_request(tmp_path, **SHARES, **little_more), FakeLauncher())[1]
    assert same.started_at == held_back.started_at
    free = collect(tune, make_request(tmp_path, **SHARES, **FREE), FakeLauncher())[1]
    assert free.samples_per_second > 1.3 * held_back.samples_per_second
    assert free.config.batch_size > 80
    plenty = {"limits": Limits(80 * 1024 * MIB, 8192 * MIB)}
    again = collect(tune, make_request(tmp_path / "other", **SHARES, **plenty), FakeLauncher())[1]
    wider = {"limits": Limits(160 * 1024 * MIB, 8192 * MIB)}
    assert (
        collect(tune, make_request(tmp_path / "other", **SHARES, **wider), FakeLauncher())[1].started_at == again.started_at
    )


def test_what_ran_out_of_less_memory_than_there_is_now_does_not_count(tmp_path):
    with pytest.raises(NothingFitsError):
        collect(tune, make_request(tmp_path, **SHARES, limits=Limits(5 * MIB, 8192 * MIB)), FakeLauncher())
    record = collect(tune, make_request(tmp_path, **SHARES, **FREE), FakeLauncher())[1]
    assert record.config.batch_size > 80
    assert all(t.measurement.outcome is Outcome.OK for t in record.trials)


def test_what_timed_out_or_crashed_does_not_count_in_a_later_tune(tmp_path):
    for outcome in (Outcome.TIMEOUT, Outcome.CRASHED):

        class Fails(FakeLauncher):
            def measure(self, spec):
                return Measurement(outcome, Evidence("ended"), spec.deadline_seconds)  # noqa: B023  # called in this round

        for _ in range(2):
            launcher = Fails()
            with pytest.raises(NoTrialFinishedError, match=f"3 {outcome}"):
                collect(tune, make_request(tmp_path), launcher)
            assert sum(spec.role == "measure" for spec in launcher.specs) == 3
    assert collect(tune, make_request(tmp_path), FakeLauncher())[1].trials


def test_each_budget_has_its_own_answer(tmp_path):
    answers = {n: collect(tune, make_request(tmp_path, max_trials=n), FakeLauncher())[1] for n in (2, 6)}
    for count, answer in answers.items():
        launcher = FakeLauncher()
        assert collect(tune, make_request(tmp_path, max_trials=count), launcher)[1].started_at == answer.started_at
        assert launcher.specs == []


def test_a_known_answer_is_told_with_the_files_as_they_lie_now(tmp_path):
    collect(tune, make_request(tmp_path), FakeLauncher())
    moved = CallSource(imports=("import sys", "sys.path.insert(0, '/new')"))
    assert collect(tune, make_request(tmp_path, call_source=moved), FakeLauncher())[1].call_source == moved


@pytest.mark.parametrize("kind", ["journal:{}/t.log", "sqlite:///{}/t.db"])
def test_a_tune_whose_study_is_deleted_meanwhile_goes_on_and_says_so(tmp_path, kind):
    where = kind.format(tmp_path)

    class Forgets(FakeLauncher):
        def measure(self, spec):
            with connection.opened(where) as backend, contextlib.suppress(KeyError):
                backend.delete_study(backend.get_study_id_from_name(make_request(tmp_path).fingerprint()))
            collect(tune, make_request(tmp_path, storage=where, workload_fingerprint="another"), FakeLauncher())
            return super().measure(spec)

    events, record = collect(tune, make_request(tmp_path, storage=where), Forgets())
    told = [event.text for event in events if isinstance(event, Notice) and "optuna delete-study" in event.text]
    assert len(told) == 1, told
    assert record.speedup.ratio > 1
    with connection.opened(where) as backend:
        (other,) = backend.get_all_studies()
    assert other.study_name == make_request(tmp_path, workload_fingerprint="another").fingerprint()


@pytest.mark.parametrize("kind", ["journal:{}/t.log", "sqlite:///{}/t.db"])
def test_a_tune_whose_storage_fills_up_goes_on_and_keeps_its_trials(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("optuna.storages._rdb.storage.random.random", lambda: 0.0)  # it waits between attempts
    where, limit = kind.format(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fills(FakeLauncher):
        def measure(self, spec):
            if spec.role == "measure" and sum(each.role == "measure" for each in self.specs) == 3:
                largest = max(file.stat().st_size for file in tmp_path.iterdir())
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, limit[1]))
            return super().measure(spec)

    try:
        events, record = collect(tune, make_request(tmp_path, storage=where, max_trials=6), Fills())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    told = [event.text for event in events if isinstance(event, Notice) and "cannot be stored" in event.text]
    assert len(told) == 1, told
    assert "This tune goes on, but a later one must run again what is not stored" in told[0]
    assert [trial.number for trial in record.trials] == list(range(8))
    assert record.speedup.ratio > 1
    launcher = FakeLauncher()
    again = collect(tune, make_request(tmp_path, storage=where, max_trials=6), launcher)[1]
    assert len(again.trials) == 8
    assert again.trials[:2] == record.trials[:2]
    assert sum(spec.role == "measure" for spec in launcher.specs) >= 4


FEW = {**SHARES, "space": {"batch_size": [64, 128, 256], "workers": [2, 4], "max_queue_size": [10]}}


def ended_in_the_second_confirmation(tmp_path, limits):
    """A tune whose first choice runs out of host memory when it is confirmed, ended as the second is; the first choice."""

    class Ends(FakeLauncher):
        def run(self, spec):
            if spec.role == "confirm":
                first = next(s.config for s in [*self.specs, spec] if s.role == "confirm")
                if spec.config != first:
                    raise KeyboardInterrupt
                self.specs.append(spec)
                yield "working"
                return Measurement(Outcome.HOST_OOM, Evidence("host full"), 3.0, started_at=7.0)
            return (yield from super().run(spec))

    launcher = Ends()
    with pytest.raises(KeyboardInterrupt):
        collect(tune, make_request(tmp_path, **FEW, limits=limits), launcher)
    return next(spec.config for spec in launcher.specs if spec.role == "confirm")


def test_a_confirming_run_that_had_less_memory_than_there_is_now_is_run_again(tmp_path):
    first = ended_in_the_second_confirmation(tmp_path, Limits(None, 4096 * MIB))
    launcher = FakeLauncher()
    collect(tune, make_request(tmp_path, **FEW, limits=Limits(None, 8192 * MIB)), launcher)
    assert first in [spec.config for spec in launcher.specs if spec.role == "confirm"]


def test_a_confirming_run_that_failed_before_is_told_as_one(tmp_path):
    limits = Limits(None, 4096 * MIB)
    first = ended_in_the_second_confirmation(tmp_path, limits)
    launcher = FakeLauncher()
    record = collect(tune, make_request(tmp_path, **FEW, limits=limits), launcher)[1]
    assert first not in [spec.config for spec in launcher.specs if spec.role == "confirm"]
    assert first in [run.config for run in record.runs if run.measurement.outcome is Outcome.HOST_OOM]
    assert all(trial.measurement.outcome is Outcome.OK for trial in record.searched)


LIMITED = {"limits": Limits(4096 * MIB, 4096 * MIB), "space": {**FEW["space"], "use_multiprocessing": [False]}}


@pytest.mark.parametrize(("memory", "kind"), [("host", "journal:{}/t.log"), ("device", "sqlite:///{}/t.db")])
def test_a_result_that_failed_in_training_is_not_given_again(tmp_path, memory, kind):
    storage, results = kind.format(tmp_path), []
    request = make_request(tmp_path, **LIMITED, storage=storage)
    for _ in range(3):
        record = collect(tune, request, FakeLauncher())[1]
        results.append(record)
        again = FakeLauncher()
        assert collect(tune, request, again)[1].config == record.config
        assert again.specs == []  # also if a result failed before
        for failed in reversed(results):  # saying it of an older one again changes nothing
            Result(**vars(failed)).failed(memory, storage)
    assert len({result.config for result in results}) == 3
    peaks = [getattr(result, f"{memory}_peak_bytes") for result in results]
    assert peaks == sorted(peaks, reverse=True)
    ooms = {trial.config for trial in record.trials if trial.measurement.outcome is Outcome(f"{memory}_oom")}
    assert ooms == {result.config for result in results[:2]}
    options = request.settings.options.model_copy(update={"fresh": True})
    anew = replace(request, settings=request.settings.model_copy(update={"options": options}))
    assert collect(tune, anew, FakeLauncher())[1].config == results[0].config


def test_a_result_without_a_study_cannot_fail(tmp_path):
    record = collect(tune, make_request(tmp_path), FakeLauncher())[1]
    result = Result(**vars(record))
    for storage in (str(tmp_path / "none.db"), f"journal:{tmp_path / 'other.log'}"):
        with pytest.raises(UsageError, match=rf"^storage: .* does not have the tune {record.study}"):
            result.failed("host", storage)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(UsageError, match=r"^memory: 'gpu' is not allowed; write host or device"):
        result.failed("gpu", f"journal:{tmp_path / 'trials.log'}")
