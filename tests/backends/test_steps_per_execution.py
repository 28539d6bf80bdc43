"""Several steps in a call of the train function, on each backend: what Keras does, and what a tune makes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import needs

ROOT = Path(__file__).resolve().parents[2]
HEADER = """
import json, sys
import keras
import numpy as np

x, y = np.random.default_rng(0).normal(size=(20 * 16, 8)).astype("float32"), np.zeros((20 * 16, 1), "float32")

def build_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
"""
WEIGHTS = """
def trained(steps, jit_compile=None):
    calls, model = [], build_model()
    model.steps_per_execution = steps
    if jit_compile is not None:
        model.jit_compile = jit_compile
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: calls.append(batch))
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[count])
    return model.get_weights(), len(calls), int(model.optimizer.iterations)

def apart(weights, others):
    return max(float(abs(a - b).max()) for a, b in zip(weights, others))

(one, *of_one), (eight, *of_eight) = trained(1), trained(8)
compiled = apart(trained(8, True)[0], trained(8, False)[0])
print(json.dumps([apart(one, eight), compiled, of_one, of_eight]))
"""
TUNE = """
import autofit

if __name__ == "__main__":
    space = {"batch_size": [16, 32], "steps_per_execution": [4, 16]}
    result = autofit.tune(build_model, (x, y), space=space, storage=sys.argv[1], max_trials=5)
    calls = [trial.config.steps_per_execution for trial in result.trials]
    print(json.dumps([calls, result.compile_kwargs, result.snippet(), str(result.config)]))
"""


def run(program, backend, folder):
    script = folder / "program.py"
    script.write_text(HEADER + program)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, folder / "trials.db"]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=800)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_updates_are_the_same_and_batch_callbacks_run_once_a_call(backend, tmp_path):
    needs(backend)
    difference, compiled, of_one, of_eight = json.loads(run(WEIGHTS, backend, tmp_path).stdout.splitlines()[-1])
    assert difference < 1e-6
    assert compiled < 1e-5  # XLA orders sums in its own way
    assert of_one == [20, 20]
    assert of_eight == [3, 20]  # the last call trains on the 4 batches that are left


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_tune_tries_them_and_hands_over_what_it_found(backend, tmp_path):
    needs(backend)
    process = run(TUNE, backend, tmp_path)
    assert process.returncode == 0, process.stderr
    calls, compile_kwargs, snippet, config = json.loads(process.stdout.splitlines()[-1])
    assert {4, 16} & set(calls)  # which of them depends on the rates
    steps = compile_kwargs["steps_per_execution"]
    assert (f"model.steps_per_execution = {steps}" in snippet) == (steps > 1)
    assert (f"{steps} steps a call" in config) == (steps > 1)


@pytest.mark.slow
def test_on_torch_they_are_refused_before_a_trial(tmp_path):
    needs("torch")
    process = run(TUNE, "torch", tmp_path)
    assert process.returncode
    last = process.stderr.strip().splitlines()[-1]
    assert "steps_per_execution is given, but it cannot be set for this model" in last
