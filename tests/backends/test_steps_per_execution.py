"""Several steps in a call of the train function, on each backend: what Keras does, and what a tune makes of it."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import autofit
from autofit.errors import UsageError
from tests.installed import needs

ROWS = np.random.default_rng(0).normal(size=(20 * 16, 8)).astype("float32"), np.zeros((20 * 16, 1), "float32")
WEIGHTS = """
import json
import keras
from tests.backends.test_steps_per_execution import ROWS, build_model

def trained(steps, jit_compile=None):
    keras.utils.set_random_seed(0)
    calls, model = [], build_model()
    model.steps_per_execution = steps
    if jit_compile is not None:
        model.jit_compile = jit_compile
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: calls.append(batch))
    model.fit(*ROWS, batch_size=16, shuffle=False, verbose=0, callbacks=[count])
    return model.get_weights(), len(calls), int(model.optimizer.iterations)

def apart(weights, others):
    return max(float(abs(a - b).max()) for a, b in zip(weights, others))

(one, *of_one), (eight, *of_eight) = trained(1), trained(8)
compiled = apart(trained(8, True)[0], trained(8, False)[0])
print(json.dumps([apart(one, eight), compiled, of_one, of_eight]))
"""


def build_model():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_updates_are_the_same_and_batch_callbacks_run_once_a_call(backend):
    needs(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    text = subprocess.check_output([sys.executable, "-c", WEIGHTS], text=True, env=environment, timeout=280)
    difference, compiled, of_one, of_eight = json.loads(text.splitlines()[-1])
    assert difference < 1e-6
    assert compiled < 1e-5  # XLA orders sums in its own way
    assert of_one == [20, 20]
    assert of_eight == [3, 20]  # the last call trains on the 4 batches that are left


def tune(backend, folder):
    needs(backend)
    space = {"batch_size": [16, 32], "steps_per_execution": [4, 16]}
    storage = str(folder / "trials.db")
    arguments = {"backend": backend, "device": "cpu", "max_trials": 5, "storage": storage, "progress": False}
    return autofit.tune(build_model, ROWS, space=space, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_tune_tries_them_and_hands_over_what_it_found(backend, tmp_path):
    result = tune(backend, tmp_path)
    calls = {trial.config.steps_per_execution for trial in result.trials}
    assert {4, 16} & calls  # which of them depends on the rates
    steps = result.compile_kwargs["steps_per_execution"]
    assert (f"model.steps_per_execution = {steps}" in result.snippet()) == (steps > 1)


@pytest.mark.slow
def test_on_torch_they_are_refused_before_a_trial(tmp_path):
    with pytest.raises(UsageError, match="steps_per_execution is given, but it cannot be set for this model"):
        tune("torch", tmp_path)
