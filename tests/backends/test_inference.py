"""Tunes of `predict` and `evaluate` on each backend."""

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
"""
TUNE = """
if __name__ == "__main__":
    build, data = {"predict": (build_model, Rows), "evaluate": (build_compiled, (x, y))}[sys.argv[1]]
    space = {"batch_size": [16, 64, 256], "workers": [1]} if data is Rows else {"batch_size": [16, 64, 256]}
    bounds = {"space": space, "baseline": {"batch_size": 16}, "max_trials": 4}
    result = autofit.tune(build, data, call=sys.argv[1], storage=sys.argv[2], **bounds)
    outcomes = [str(trial.measurement.outcome) for trial in result.trials]
    print(json.dumps([outcomes, result.snippet(), str(result)]))
"""
PLAIN = """
import re

def peak(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1))

model = build_model(20_000)
model.predict(x[:128], batch_size=64, verbose=0)
before = peak("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM
outputs = model.predict(x, batch_size=64, verbose=0)
print(json.dumps(peak("VmHWM") - before))
"""
KEPT = """
if __name__ == "__main__":
    width, limit = int(sys.argv[1]), sys.argv[2]
    (run,) = autofit.measure(
        build_model, x, [autofit.FitConfig(64)], call="predict", model_kwargs={"width": width}, host_memory=limit
    )
    print(json.dumps([str(run.measurement.outcome), run.measurement.host_peak_bytes]))
"""


def run(program, backend, folder, *arguments):
    script = folder / "program.py"
    script.write_text(HEADER + program)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "call"), [("tensorflow", "predict"), ("tensorflow", "evaluate"), ("jax", "predict"), ("torch", "predict")]
)
def test_inference_is_tuned(backend, call, tmp_path):
    needs(backend)
    process = run(TUNE, backend, tmp_path, call, tmp_path / "trials.db")
    assert process.returncode == 0, process.stderr
    outcomes, snippet, summary = json.loads(process.stdout.splitlines()[-1])
    assert len(outcomes) > 1
    assert set(outcomes) == {"ok"}
    assert f"model.{call}(" in snippet
    assert "fit" not in snippet
    assert "learning rate" not in summary


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_trial_of_predict_holds_the_outputs_of_all_samples_as_predict_itself_does(backend, tmp_path):
    needs(backend)
    peaks = []
    for width in (1, 20_000):  # outputs of 24 kB and 480 MB
        process = run(KEPT, backend, tmp_path, str(width), "80%")
        assert process.returncode == 0, process.stderr
        outcome, peak = json.loads(process.stdout.splitlines()[-1])
        assert outcome == "ok"
        peaks.append(peak)
    plain = json.loads(run(PLAIN, backend, tmp_path).stdout.splitlines()[-1])
    assert peaks[1] - peaks[0] == pytest.approx(plain, rel=0.1)


@pytest.mark.slow
def test_outputs_that_exceed_the_limit_are_refused_with_their_size(tmp_path):
    needs("tensorflow")
    process = run(KEPT, "tensorflow", tmp_path, "200000", "4GiB")
    assert process.returncode
    assert "predict keeps the outputs of all 6,000 samples until it ends: 4.47 GiB, more than" in process.stderr
