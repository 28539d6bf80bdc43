"""Trials are asked from the study and told to it, by autofit's sampler or another one."""

import itertools

import optuna
import pytest
from optuna.trial import TrialState

from autofit.errors import UsageError
from autofit.records.trial import FitConfig
from autofit.search.failures import dominated_by
from autofit.search.frontier import EXHAUSTED
from autofit.storage import connection
from autofit.workload import fingerprint
from tests.fakes import MIB, FakeLauncher, arrays, make_request, tuned

SMALL = {"batch_size": [8, 16], "workers": [1, 2], "max_queue_size": [4], "use_multiprocessing": [False]}
VALUES = {"batch_size": (8, 16), "workers": (1, 2)}


def stored(request):
    """All Optuna trials of a request's study."""
    with connection.opened(request.settings.storage) as backend:
        return backend.get_all_trials(backend.get_study_id_from_name(request.fingerprint()))


class Largest(optuna.samplers.RandomSampler):
    """Proposes the largest value of each knob, or one beyond it."""

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {"batch_size": 10**6, "workers": 64, "max_queue_size": 100, "use_multiprocessing": False}


class Broken(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        raise ValueError(f"{name} is beyond me")


@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.samplers.TPESampler(seed=0),
        lambda: optuna.samplers.NSGAIISampler(seed=0, population_size=4),
    ],
)
def test_another_sampler_proposes_within_the_memory(tmp_path, make):
    asked = {"device_bytes": 80 * MIB, "max_trials": 12, "sampler": make()}
    record = tuned(tmp_path, FakeLauncher(cliff=32), **asked)
    trials = record.searched
    assert len({trial.config for trial in trials}) == len(trials) >= 12
    assert record.config in [trial.config for trial in trials]
    assert all("proposed by the sampler" in trial.why for trial in trials)
    assert [FitConfig.of(trial.params) for trial in stored(make_request(tmp_path, **asked))] == [
        t.config for t in record.trials
    ]
    assert sum(trial.measurement.outcome.is_oom for trial in trials) <= 3
    for earlier, trial in itertools.combinations(trials, 2):
        assert not dominated_by(arrays(trial.config), arrays(earlier.config), earlier.measurement.outcome)[0]


GRID = {"batch_size": [8, 64, 512], "workers": [4], "max_queue_size": [10], "use_multiprocessing": [False]}


@pytest.mark.parametrize(
    ("sampler", "settings", "batches", "reason"),
    [
        (Largest(), {"max_trials": 50}, None, "the last 5 proposals of Largest were not new"),
        (optuna.samplers.RandomSampler(seed=0), {"space": SMALL}, {8, 16, 32}, EXHAUSTED),
        (optuna.samplers.GridSampler(GRID), {}, {8, 32, 64, 512}, "GridSampler has proposed all that it wanted to"),
    ],
)
def test_a_sampler_that_has_nothing_new_to_propose_is_stopped(tmp_path, sampler, settings, batches, reason):
    record = tuned(tmp_path, sampler=sampler, **settings)
    assert record.stop_reason == reason
    assert len({trial.config for trial in record.trials}) == len(record.trials)
    assert batches in (None, {trial.config.batch_size for trial in record.trials})


def test_the_error_of_a_sampler_is_one_of_its_argument(tmp_path):
    request = make_request(tmp_path, sampler=Broken())
    tuned(tmp_path, max_trials=2)
    with pytest.raises(UsageError, match=r"^options.sampler: Broken failed: ValueError: batch_size is beyond me$"):
        tuned(tmp_path, sampler=Broken())
    assert {trial.state for trial in stored(request)} == {TrialState.COMPLETE}


def test_a_sampler_is_identified_by_its_settings():
    keys = [fingerprint.identity_of(optuna.samplers.TPESampler(seed=seed)) for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]
