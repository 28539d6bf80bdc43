"""A whole tune whose trials a sampler of Optuna proposes, and the study that it leaves."""

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import autofit

VALUES = np.random.default_rng(0).normal(size=(8000, 8)).astype("float32")
SPACE = {"batch_size": {"min": 8, "max": 512}, "steps_per_execution": [1, 8]}


def build_model():
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.slow
def test_a_sampler_of_optuna_tunes_to_the_end(tmp_path):
    storage = f"sqlite:///{tmp_path}/trials.db"

    def tune(seed):
        sampler = optuna.samplers.TPESampler(seed=seed)
        arguments = {"space": SPACE, "max_trials": 6, "device": "cpu", "storage": storage, "progress": False}
        return autofit.tune(build_model, (VALUES, VALUES[:, :1]), options={"sampler": sampler}, **arguments)

    result = tune(0)
    assert result.stop_reason == "all 6 trials are used up"
    assert 6 <= len({trial.config for trial in result.trials}) <= 8  # at most two more at the own batch size
    assert all("proposed by the sampler" in trial.why for trial in result.trials)
    assert result.samples_per_second > 0
    (study,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=study.study_name, storage=storage).trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert [trial.value for trial in trials] == [trial.samples_per_second for trial in result.trials]
    assert all(trial.constraints["host_memory"] < 0 for trial in trials)
    assert tune(0).started_at == result.started_at
    assert tune(1).started_at > result.started_at
