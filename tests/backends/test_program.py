"""What a program has set in Keras and its backend is in force in its trials and part of its fingerprint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import needs

ROOT = Path(__file__).parents[2]
LOOKS = {  # the public getters, in a trial
    "keras": """{"floatx": keras.config.floatx(), "epsilon": keras.config.epsilon(),
        "data_format": keras.config.image_data_format(), "policy": keras.config.dtype_policy().name,
        "flash": keras.config.is_flash_attention_enabled(),
        "custom": keras.saving.get_registered_name(keras.saving.get_registered_object("halved"))}""",
    "tensorflow": """{"intra": backend.config.threading.get_intra_op_parallelism_threads(),
        "inter": backend.config.threading.get_inter_op_parallelism_threads(),
        "tf32": backend.config.experimental.tensor_float_32_execution_enabled()}""",
    "jax": """{"x64": backend.config.jax_enable_x64, "precision": backend.config.jax_default_matmul_precision}""",
    "torch": """{"precision": backend.get_float32_matmul_precision(),
        "threads": backend.get_num_threads()}""",
}
SETS = """
keras.config.set_floatx("float64")
keras.config.set_epsilon(1e-4)
keras.config.set_image_data_format("channels_first")
keras.config.set_dtype_policy("mixed_bfloat16")
keras.config.disable_flash_attention()
keras.saving.register_keras_serializable()(Doubled)
keras.saving.get_custom_objects()["halved"] = Doubled
"""
SET = {
    "floatx": "float64",
    "epsilon": 1e-4,
    "data_format": "channels_first",
    "policy": "mixed_bfloat16",
    "flash": False,
    "custom": "Custom>Doubled",
}
OF_BACKEND = {
    "tensorflow": (
        "backend.config.threading.set_intra_op_parallelism_threads(1)\n"
        "backend.config.threading.set_inter_op_parallelism_threads(2)\n"
        "backend.config.experimental.enable_tensor_float_32_execution(False)",
        {"intra": 1, "inter": 2, "tf32": False},
    ),
    "jax": (
        "backend.config.update('jax_enable_x64', True)\nbackend.config.update('jax_default_matmul_precision', 'highest')",
        {"x64": True, "precision": "highest"},
    ),
    "torch": (
        "backend.set_float32_matmul_precision('high')\nbackend.set_num_threads(1)",
        {"precision": "high", "threads": 1},
    ),
}
PROGRAM = """
import importlib, json, sys
import keras, numpy
import autofit
from autofit.workload.fingerprint import identify
from autofit.workload.workload import Workload

backend = importlib.import_module(keras.backend.backend())

class Doubled(keras.layers.Layer):
    pass

folder = sys.argv[1]

def build_model():
    with open(f"{{folder}}/inside.json", "w") as file:
        json.dump([{keras}, {of_backend}], file)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def fingerprint():
    return identify(Workload(build_model, data)).fingerprint

data = numpy.ones((64, 4)), numpy.ones((64, 1))
fingerprints = [fingerprint()]
{sets_of_backend}
fingerprints.append(fingerprint())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])  # makes Keras fix the default policy
assert fingerprint() == fingerprints[-1]
{sets}
fingerprints.append(fingerprint())
(measured,) = autofit.measure(build_model, data, configs=[autofit.FitConfig(32)], device="cpu", progress=False)
print(json.dumps([measured.measurement.outcome, str(measured.measurement.evidence), fingerprints]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_what_a_program_has_set_is_in_force_in_its_trials(backend, tmp_path):
    needs(backend)
    more, expected = OF_BACKEND[backend]
    program = PROGRAM.format(keras=LOOKS["keras"], of_backend=LOOKS[backend], sets=SETS, sets_of_backend=more)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome, evidence, fingerprints = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "inside.json").read_text()) == [SET, expected]
    assert outcome == "ok", evidence
    assert len(set(fingerprints)) == 3
