"""Trials are asked from the study and told to it, by autofit's sampler or another one."""

import optuna
import pytest
from optuna.trial import TrialState

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import Evidence, FitConfig, Limits, Measurement, Trial
from autofit.search.failures import dominated_by
from autofit.search.frontier import EXHAUSTED
from autofit.storage import connection
from autofit.storage.study import TuningStudy
from autofit.workload import fingerprint
from tests.fakes import MIB, FakeLauncher, arrays, collect, make_request, searched, tune

SMALL = {"batch_size": [8, 16], "workers": [1, 2], "max_queue_size": [4], "use_multiprocessing": [False]}
VALUES = {"batch_size": (8, 16), "workers": (1, 2)}


def stored(request):
    """All Optuna trials of a request's study."""
    with connection.opened(request.settings.storage) as backend:
        return backend.get_all_trials(backend.get_study_id_from_name(request.fingerprint()))


def tuned(request, launcher=None):
    events, record = collect(tune, request, launcher or FakeLauncher())
    return record, searched(events)


class Largest(optuna.samplers.RandomSampler):
    """Proposes the largest value of each knob, or one beyond it."""

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {"batch_size": 10**6, "workers": 64, "max_queue_size": 100, "use_multiprocessing": False}


class Broken(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        raise ValueError(f"{name} is beyond me")


def test_each_trial_of_a_tune_is_told_to_the_study(tmp_path):
    request = make_request(tmp_path, device_bytes=80 * MIB, max_trials=12)
    record, _ = tuned(request, FakeLauncher(cliff=32))
    trials = stored(request)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * len(record.trials)
    assert [trial.params for trial in trials] == [trial.config.values() for trial in record.trials]
    assert [trial.value for trial in trials] == [trial.samples_per_second for trial in record.trials]
    broken = [any(value > 0 for value in trial.constraints.values()) for trial in trials]
    assert broken == [trial.measurement.outcome.is_oom for trial in record.trials]
    assert any(broken)
    assert all(trial.datetime_start <= trial.datetime_complete for trial in trials)


def study_of(tmp_path):
    return TuningStudy(f"journal:{tmp_path}/t.log", "autofit-test", Limits(None, 2**33), lambda text: None)


def ask(study):
    sampler = optuna.samplers.RandomSampler(seed=0)
    return study.ask(sampler, lambda trial: FitConfig(trial.suggest_int("batch_size", 8, 16, log=True), 1))


def ran(config, rate=100.0):
    return Trial(config, Measurement(Outcome.OK, Evidence("made up"), samples_per_second=rate, host_peak_bytes=MIB))


def test_two_processes_store_in_the_same_study(tmp_path):
    mine, others = study_of(tmp_path), study_of(tmp_path)
    config = ask(mine)
    told = others.add(ran(ask(others), 200.0), VALUES, is_asked=True)
    assert others.trials() == (told,)
    assert mine.add(ran(config), VALUES, is_asked=True).samples_per_second == 100.0
    assert [(trial.number, trial.samples_per_second) for trial in study_of(tmp_path).trials()] == [(0, 200.0), (1, 100.0)]


def test_a_trial_that_was_asked_for_in_vain_has_no_number(tmp_path):
    study = study_of(tmp_path)
    ask(study)
    told = study.add(ran(ask(study)), VALUES, is_asked=True), study.add(ran(FitConfig(8, 1)), VALUES)
    numbers = [trial.number for trial in told]
    assert numbers == [trial.number for trial in study_of(tmp_path).trials()] == [0, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.samplers.TPESampler(seed=0),
        lambda: optuna.samplers.NSGAIISampler(seed=0, population_size=4),
        lambda: optuna.samplers.QMCSampler(seed=0),
        lambda: optuna.samplers.BruteForceSampler(seed=0),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_another_sampler_proposes(tmp_path, make):
    sampler = make()
    request = make_request(tmp_path, max_trials=15, sampler=sampler)
    record, trials = tuned(request)
    assert len({trial.config for trial in trials}) == 17
    assert record.stop_reason == "all 15 trials are used up"
    assert record.config in [trial.config for trial in trials]
    assert record.speedup.ratio > 1.5
    assert all("proposed by the sampler" in trial.why for trial in record.trials)
    assert [FitConfig.of(trial.params) for trial in stored(request)] == [trial.config for trial in trials]


def test_what_another_sampler_proposes_is_kept_within_the_memory(tmp_path):
    request = make_request(tmp_path, device_bytes=80 * MIB, max_trials=20, sampler=optuna.samplers.RandomSampler(seed=1))
    _, trials = tuned(request, FakeLauncher(cliff=32))
    assert len(trials) == 20
    for later, trial in enumerate(trials):
        for oom in [each for each in trials[:later] if each.measurement.outcome.is_oom]:
            assert not dominated_by(arrays(trial.config), arrays(oom.config), oom.measurement.outcome)[0]
    assert sum(trial.measurement.outcome.is_oom for trial in trials) <= 3
    assert any("which was tried or may not fit" in trial.why for trial in trials)


def test_a_sampler_that_repeats_itself_is_stopped(tmp_path):
    record, trials = tuned(make_request(tmp_path, max_trials=50, sampler=Largest()))
    assert record.stop_reason == "the last 5 proposals of Largest were not new"
    assert len({trial.config for trial in trials}) == len(trials) == 8
    assert max(trial.config.batch_size for trial in trials) > 1000


def test_a_space_that_is_exhausted_ends_the_search_of_any_sampler(tmp_path):
    record, trials = tuned(make_request(tmp_path, space=SMALL, sampler=optuna.samplers.RandomSampler(seed=0)))
    assert record.stop_reason == EXHAUSTED
    assert {trial.config.batch_size for trial in trials} == {8, 16, 32}
    assert len(trials) == 6


def test_a_grid_ends_where_it_says(tmp_path):
    grid = {"batch_size": [8, 64, 512], "workers": [4], "max_queue_size": [10], "use_multiprocessing": [False]}
    record, trials = tuned(make_request(tmp_path, sampler=optuna.samplers.GridSampler(grid)))
    assert record.stop_reason == "GridSampler has proposed all that it wanted to"
    assert {trial.config for trial in trials} == {FitConfig(size, 4, 10, False) for size in (8, 32, 64, 512)}


def test_the_error_of_a_sampler_is_one_of_its_argument(tmp_path):
    request = make_request(tmp_path, sampler=Broken())
    with pytest.raises(UsageError, match=r"^options.sampler: Broken failed: ValueError: batch_size is beyond me$"):
        tuned(request)
    tuned(make_request(tmp_path, max_trials=2))
    with pytest.raises(UsageError):
        tuned(request)
    assert {trial.state for trial in stored(request)} == {TrialState.COMPLETE}


def test_another_sampler_is_another_request_of_the_same_study(tmp_path):
    def request(sampler, key):
        return make_request(tmp_path, max_trials=4, sampler=sampler, sampler_key=key)

    keys = [fingerprint.identity_of(optuna.samplers.TPESampler(seed=seed)) for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]
    requests = [request(optuna.samplers.TPESampler(seed=0), key) for key in ("", *keys)]
    assert len({each.fingerprint() for each in requests}) == 1
    assert len({each.result_key() for each in requests}) == 3
    record, _ = tuned(requests[1])
    assert tuned(requests[2]) == (record, [])
    launcher = FakeLauncher()
    again, _ = tuned(requests[3], launcher)
    assert again.trials == record.trials
    assert launcher.specs
