"""Tunes of `predict` and `evaluate` on each backend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import needs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import keras
import numpy as np
import autofit

x, y = np.random.default_rng(0).normal(size=(6000, 8)).astype("float32"), np.zeros((6000, 1), "float32")

class Rows(keras.utils.PyDataset):
    def __init__(self, batch_size=16, **knobs):
        super().__init__(**knobs)
        self.batch_size = batch_size
    def __len__(self):
        return len(x) // self.batch_size
    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return x[rows], y[rows]

def build_model(width=1):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(width)])

def build_compiled():
    model = build_model()
    model.compile("sgd", "mse", metrics=["mae"])
    return model

if __name__ == "__main__":
    build, data = {"predict": (build_model, Rows), "evaluate": (build_compiled, (x, y))}[sys.argv[1]]
    space = {"batch_size": [16, 64, 256], "workers": [1]} if data is Rows else {"batch_size": [16, 64, 256]}
    bounds = {"space": space, "baseline": {"batch_size": 16}, "max_trials": 4}
    result = autofit.tune(build, data, call=sys.argv[1], storage=sys.argv[2], **bounds)
    outcomes = [str(trial.measurement.outcome) for trial in result.trials]
    print(json.dumps([outcomes, result.snippet(), str(result)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "call"), [("tensorflow", "predict"), ("tensorflow", "evaluate"), ("jax", "predict"), ("torch", "predict")]
)
def test_inference_is_tuned(backend, call, tmp_path):
    needs(backend)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, call, tmp_path / "trials.db"]
    process = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=800)
    assert process.returncode == 0, process.stderr
    outcomes, snippet, summary = json.loads(process.stdout.splitlines()[-1])
    assert len(outcomes) > 1
    assert set(outcomes) == {"ok"}
    assert f"model.{call}(" in snippet
    assert "fit" not in snippet
    assert "learning rate" not in summary
    assert ("outputs" in summary) == (call == "predict")
