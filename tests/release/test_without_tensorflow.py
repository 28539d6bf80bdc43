"""Keras on JAX or torch is tuned in an environment in which TensorFlow is not installed."""

import importlib.util
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.commands import ROOT, python, run
from tests.installed import needs

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

def pipeline(batch_size=16):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays()).batch(batch_size)

def images(batch_size=16):
    return keras.utils.image_dataset_from_directory(".", labels=None, batch_size=batch_size)
"""
FILE = """
build_model: parts.py:build_model
data: parts.py:{}
device: cpu
space: {{batch_size: [16]}}
max_trials: 2
storage: trials.db
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """The interpreter of an environment without TensorFlow.

    It has links to all packages of the running one but TensorFlow's.
    """
    if importlib.util.find_spec("tensorflow") is None:
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("environment")
    python("-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for source in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        for entry in source.iterdir():
            if not entry.name.lower().startswith(OF_TENSORFLOW):
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture
def autofit(interpreter, tmp_path):
    """Run autofit in that environment, beside the parts of a workload.

    A test calls `autofit(*arguments, backend=...)`.
    """
    (tmp_path / "parts.py").write_text(PARTS)

    def autofit(*arguments, backend):
        variables = {
            "PYTHONPATH": str(ROOT),
            "KERAS_HOME": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        return run(
            interpreter,
            "-m",
            "autofit",
            *arguments,
            folder=tmp_path,
            KERAS_BACKEND=backend,
            **variables,
        )

    return autofit


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_check_an_estimate_and_a_tune_on_another_backend(autofit, tmp_path, backend):
    needs(backend)
    (tmp_path / "tune.yaml").write_text(FILE.format("arrays"))
    for command in ("check", "estimate"):
        done = autofit(command, "tune.yaml", backend=backend)
        assert done.returncode == 0, done.stderr
    tuned = autofit("tune", "tune.yaml", "--output", "result.json", backend=backend)
    assert tuned.returncode == 0, tuned.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert {trial["measurement"]["outcome"] for trial in result["trials"]} == {"ok"}


def test_the_default_backend_names_what_is_missing(autofit, tmp_path):
    needs("jax")
    (tmp_path / "tune.yaml").write_text(FILE.format("arrays"))
    assert autofit("doctor", backend="jax").returncode == 0
    missing = autofit("doctor", backend=None)
    refused = autofit("tune", "tune.yaml", backend=None)
    assert (missing.returncode, refused.returncode) == (1, 2)
    for text in (missing.stdout, refused.stderr):
        assert "or set KERAS_BACKEND to jax" in " ".join(text.split())
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("data", ["pipeline", "images"])
def test_data_that_needs_tensorflow_says_so(autofit, tmp_path, data):
    needs("jax")
    (tmp_path / "tune.yaml").write_text(FILE.format(data))
    (tmp_path / "a.png").touch()
    refused = autofit("tune", "tune.yaml", backend="jax")
    assert refused.returncode == 1, refused.stderr
    assert "TensorFlow is not installed" in refused.stderr.splitlines()[-1]
