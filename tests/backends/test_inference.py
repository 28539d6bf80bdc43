"""Tunes of `predict` and `evaluate` on each backend."""

import keras
import numpy as np
import pytest

import autofit
from autofit.records.states import Outcome
from tests.installed import needs

ROWS = np.random.default_rng(0).normal(size=(6000, 8)).astype("float32"), np.zeros((6000, 1), "float32")


class Batches(keras.utils.PyDataset):
    def __init__(self, batch_size=16, **knobs):
        super().__init__(**knobs)
        self.batch_size = batch_size

    def __len__(self):
        return len(ROWS[0]) // self.batch_size

    def __getitem__(self, index):
        return tuple(array[index * self.batch_size : (index + 1) * self.batch_size] for array in ROWS)


def build_model(is_compiled):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    if is_compiled:
        model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "call"), [("tensorflow", "predict"), ("tensorflow", "evaluate"), ("jax", "predict"), ("torch", "predict")]
)
def test_inference_is_tuned(backend, call, tmp_path):
    needs(backend)
    data, space = (Batches, {"workers": [1]}) if call == "predict" else (ROWS, {})
    result = autofit.tune(
        build_model,
        data,
        model_kwargs={"is_compiled": call == "evaluate"},
        space={"batch_size": [16, 64, 256], **space},
        baseline={"batch_size": 16},
        call=call,
        backend=backend,
        device="cpu",
        max_trials=4,
        storage=str(tmp_path / "trials.db"),
        progress=False,
    )
    assert len(result.trials) > 1
    assert {trial.measurement.outcome for trial in result.trials} == {Outcome.OK}
    assert f"model.{call}(" in result.snippet()
    assert "fit" not in result.snippet()
    assert "learning rate" not in str(result)
    assert ("outputs" in str(result)) == (call == "predict")
