"""Trials are asked from the study and told to it, by autofit's sampler or another one."""

import itertools

import optuna
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.search.failures import dominated_by
from autofit.search.frontier import EXHAUSTED
from autofit.storage import connection
from tests.fakes import MIB, FakeLauncher, arrays, make_request, tune, tuned

SMALL = {
    "batch_size": [8, 16],
    "workers": [1, 2],
    "max_queue_size": [4],
    "use_multiprocessing": [False],
}


class Largest(optuna.samplers.RandomSampler):
    """Proposes the largest value of each knob, or one beyond it."""

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {
            "batch_size": 10**6,
            "workers": 64,
            "max_queue_size": 100,
            "use_multiprocessing": False,
        }


def test_another_sampler_proposes_within_the_memory(tmp_path):
    request = make_request(
        tmp_path,
        device_bytes=80 * MIB,
        max_trials=8,
        sampler=optuna.samplers.TPESampler(seed=0),
    )
    record = tune(request, FakeLauncher(cliff=32), lambda event: None)
    trials = record.searched
    assert len({trial.config for trial in trials}) == len(trials)
    assert len(trials) + [run.stage for run in record.runs].count("again") == 8
    assert record.config in [trial.config for trial in trials]
    assert all("proposed by the sampler" in trial.why for trial in trials)
    with connection.opened(request.settings.storage) as backend:
        stored = backend.get_all_trials(
            backend.get_study_id_from_name(request.fingerprint())
        )
    readings = {trial.number: trial for trial in (*record.trials, *record.runs)}
    assert [FitConfig.of(trial.params) for trial in stored] == [
        readings[number].config for number in sorted(readings)
    ]
    for earlier, trial in itertools.combinations(trials, 2):
        assert not dominated_by(
            arrays(trial.config), arrays(earlier.config), earlier.measurement.outcome
        )[0]


@pytest.mark.parametrize(
    ("sampler", "settings", "reason"),
    [
        (Largest(), {"max_trials": 50}, "the last 5 proposals of Largest were not new"),
        (
            optuna.samplers.RandomSampler(seed=0),
            {"space": SMALL, "max_trials": 30},
            EXHAUSTED,
        ),
    ],
)
def test_a_sampler_that_has_nothing_new_to_propose_is_stopped(
    tmp_path, sampler, settings, reason
):
    record = tuned(tmp_path, sampler=sampler, **settings)
    assert record.stop_reason == reason
    assert len({trial.config for trial in record.searched}) == len(record.searched)


def test_another_sampler_learns_from_the_trials_of_an_earlier_tune(tmp_path):
    sampler = optuna.samplers.RandomSampler(seed=0)
    seen = []
    sampler.before_trial = lambda study, trial: seen.append(
        [one.value for one in study.get_trials() if one.value]
    )
    earlier = tuned(tmp_path, sampler=sampler, max_trials=3)
    seen.clear()
    tuned(tmp_path, sampler=sampler, max_trials=9)
    readings = sorted(
        (*earlier.searched, *earlier.runs), key=lambda trial: trial.number
    )
    assert seen[0] == [trial.samples_per_second for trial in readings]


def test_the_error_of_a_sampler_is_one_of_its_argument(tmp_path):
    def fail(*arguments):
        raise ValueError("beyond me")

    broken = optuna.samplers.RandomSampler()
    broken.sample_independent = fail
    with pytest.raises(UsageError, match="beyond me") as raised:
        tuned(tmp_path, sampler=broken, space=SMALL)
    assert raised.value.key == "options.sampler"
