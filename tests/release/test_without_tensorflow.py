"""Keras on JAX or torch is tuned in an environment in which TensorFlow is not installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.installed import needs

ROOT = Path(__file__).resolve().parents[2]
OF_TENSORFLOW = ("tensorflow", "tensorboard", "libclang")
PARTS = """
import importlib.util
import keras
import numpy as np

def build_model():
    assert importlib.util.find_spec("tensorflow") is None
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def arrays():
    return np.ones((512, 8), "float32"), np.ones((512, 1), "float32")
"""
FILE = (
    "{build_model: parts.py:build_model, data: parts.py:arrays, device: cpu, space: {batch_size: [16]}, storage: trials.db}"
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with links to all packages of the running one but TensorFlow's."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for source in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        for entry in source.iterdir():
            if not entry.name.lower().startswith(OF_TENSORFLOW):
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture
def run(python, tmp_path):
    """Run autofit in that environment, beside the parts of a workload: `run(*arguments, backend=...)`."""
    (tmp_path / "parts.py").write_text(PARTS)

    def autofit(*arguments, backend):
        environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
        environment |= {"PYTHONPATH": str(ROOT), "KERAS_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
        environment |= {"KERAS_BACKEND": backend} if backend else {}
        command = [str(python), "-m", "autofit", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800, check=False
        )

    return autofit


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_tune_on_another_backend(run, tmp_path, backend):
    needs(backend)
    (tmp_path / "tune.yaml").write_text(FILE)
    tuned = run("tune", "tune.yaml", "--output", "result.json", backend=backend)
    assert tuned.returncode == 0, tuned.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert {trial["measurement"]["outcome"] for trial in result["trials"]} == {"ok"}


def test_the_default_backend_names_what_is_missing(run, tmp_path):
    needs("jax")
    (tmp_path / "tune.yaml").write_text(FILE)
    assert run("doctor", backend="jax").returncode == 0
    missing, refused = run("doctor", backend=None), run("tune", "tune.yaml", backend=None)
    assert (missing.returncode, refused.returncode) == (1, 2)
    for text in (missing.stdout, refused.stderr):
        assert "pip install tensorflow" in " ".join(text.split())
    assert "Traceback" not in refused.stderr
