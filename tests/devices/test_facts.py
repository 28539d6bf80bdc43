"""What Keras does with a batch that several devices cannot share evenly: the warnings and errors of autofit rest on it."""

import json
import os
import subprocess
import sys

import pytest

from autofit.backends.jax.backend import variables_for_cpu_devices
from tests.installed import needs

PROGRAM = """
import json, sys
import keras, numpy as np

def ending(samples, batch_size, normalized=False, steps=None):
    layers = [keras.Input((4,)), *([keras.layers.BatchNormalization()] if normalized else []), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=steps), "mse")
    x = np.random.default_rng(0).random((samples, 4), dtype="float32")
    try:
        model.fit(x, x[:, :1], batch_size=batch_size, verbose=0, shuffle=False)
    except Exception as error:
        return type(error).__name__
    return "nan" if any(np.isnan(weights).any() for weights in model.get_weights()) else "trained"

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy()
    build = ending
    def ending(*arguments):
        with strategy.scope():
            return build(*arguments)
else:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
cases = {"even": (16, 8), "last": (17, 8), "first": (14, 7), "last, normalized": (17, 8, True)}
cases["accumulated"] = (16, 8, False, 2)
print(json.dumps({name: ending(*case) for name, case in cases.items()}))
"""


@pytest.mark.parametrize(
    ("backend", "endings"),
    [
        (
            "tensorflow",
            {
                "even": "trained",
                "last": "trained",
                "first": "InvalidArgumentError",
                "last, normalized": "nan",
                "accumulated": "RuntimeError",
            },
        ),
        (
            "jax",
            {
                "even": "trained",
                "last": "IndivisibleError",
                "first": "IndivisibleError",
                "last, normalized": "IndivisibleError",
                "accumulated": "trained",
            },
        ),
    ],
)
def test_an_uneven_batch(backend, endings):
    needs(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "-1", **variables_for_cpu_devices(2)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment, stdout=subprocess.PIPE, timeout=280)
    assert json.loads(done.stdout) == endings
