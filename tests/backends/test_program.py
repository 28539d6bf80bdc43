"""What a program has set in Keras and its backend is in force in its trials.

It is a part of the program's fingerprint as well.
"""

import json

from tests.commands import ROOT, python
from tests.installed import needs

BACKEND = "jax"
OF_KERAS = [  # what a program sets, the public getter, and the value
    ("keras.config.set_floatx('float64')", "keras.config.floatx()", "float64"),
    ("keras.config.set_epsilon(1e-4)", "keras.config.epsilon()", 1e-4),
    (
        "keras.config.set_image_data_format('channels_first')",
        "keras.config.image_data_format()",
        "channels_first",
    ),
    (
        "keras.config.set_dtype_policy('mixed_bfloat16')",
        "keras.config.dtype_policy().name",
        "mixed_bfloat16",
    ),
    (
        "keras.saving.get_custom_objects()['d'] = Doubled",
        "keras.saving.get_registered_object('d').__name__",
        "Doubled",
    ),
]
THREADS, TF32 = "backend.config.threading", "backend.config.experimental"
PRECISION = "backend.config.jax_default_matmul_precision"
OF_BACKEND = {
    "tensorflow": [
        (
            f"{THREADS}.set_intra_op_parallelism_threads(1)",
            f"{THREADS}.get_intra_op_parallelism_threads()",
            1,
        ),
        (
            f"{THREADS}.set_inter_op_parallelism_threads(2)",
            f"{THREADS}.get_inter_op_parallelism_threads()",
            2,
        ),
        (
            f"{TF32}.enable_tensor_float_32_execution(False)",
            f"{TF32}.tensor_float_32_execution_enabled()",
            False,
        ),
    ],
    "jax": [
        (
            "backend.config.update('jax_enable_x64', True)",
            "backend.config.jax_enable_x64",
            True,
        ),
        (
            "backend.config.update('jax_default_matmul_precision', 'highest')",
            PRECISION,
            "highest",
        ),
    ],
    "torch": [
        (
            "backend.set_float32_matmul_precision('high')",
            "backend.get_float32_matmul_precision()",
            "high",
        ),
        ("backend.set_num_threads(1)", "backend.get_num_threads()", 1),
    ],
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

path = sys.argv[1]

def build_model():
    with open(path, "w") as file:
        json.dump([{getters}], file)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

data = numpy.ones((64, 4)), numpy.ones((64, 1))
fingerprints = [identify(**vars(Workload(build_model, data)))]
{set}
fingerprints.append(identify(**vars(Workload(build_model, data))))
(measured,) = autofit.measure(
    build_model, data, configs=[autofit.FitConfig(32)], device="cpu", progress=False
)
print(json.dumps([measured.measurement.outcome, str(measured.measurement.evidence), fingerprints]))
"""


def test_what_a_program_has_set_is_in_force_in_its_trials(backend, tmp_path):
    settings = [*OF_KERAS, *OF_BACKEND[backend]]
    setters, getters, values = map(list, zip(*settings, strict=True))
    program = PROGRAM.format(getters=", ".join(getters), set="\n".join(setters))
    variables = {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    printed = python("-c", program, str(tmp_path / "inside.json"), **variables)
    outcome, evidence, fingerprints = json.loads(printed.splitlines()[-1])
    assert json.loads((tmp_path / "inside.json").read_text()) == values
    assert outcome == "ok", evidence
    assert len(set(fingerprints)) == 2


DISTRIBUTED = """
import sys
import keras, numpy
import autofit

keras.distribution.set_distribution(keras.distribution.DataParallel())
path = sys.argv[1]

def build_model():
    with open(path, "w") as file:
        file.write(" ".join(keras.distribution.distribution().device_mesh.devices))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

data = numpy.ones((64, 4)), numpy.ones((64, 1))
for device in ("cpu", "2x cpu"):
    try:
        (measured,) = autofit.measure(
            build_model, data, configs=[autofit.FitConfig(32)], device=device, progress=False
        )
        print(measured.measurement.outcome)
    except autofit.UsageError as error:
        print(error.key)
"""


def test_a_distribution_that_a_program_has_set_is_that_of_its_trials(tmp_path):
    needs("jax")
    variables = {
        "KERAS_BACKEND": "jax",
        "JAX_NUM_CPU_DEVICES": "2",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    printed = python("-c", DISTRIBUTED, str(tmp_path / "devices"), **variables)
    assert printed.split()[-2:] == ["device", "ok"]
    assert (tmp_path / "devices").read_text() == "cpu:0 cpu:1"
