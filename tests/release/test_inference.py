"""A tune of `predict`."""

import numpy as np

import autofit
from autofit.records.states import Outcome

BACKEND = "jax"
ROWS = np.ones((6000, 8), "float32")


def build_model():
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])


def test_inference_is_tuned(backend, tmp_path):
    space, storage = {"batch_size": [16, 256], "steps_per_execution": [1]}, str(tmp_path / "trials.db")
    given = {"space": space, "baseline": {"batch_size": 16}, "max_trials": 2, "storage": storage, "progress": False}
    result = autofit.tune(build_model, ROWS, call="predict", backend=backend, device="cpu", **given)
    assert {trial.measurement.outcome for trial in result.trials} == {Outcome.OK}
    assert "model.predict(" in result.snippet()
    assert "fit" not in result.snippet()
    assert "learning rate" not in str(result)
    assert "outputs" in str(result)
