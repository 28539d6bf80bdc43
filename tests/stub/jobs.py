"""A model and data for trials on the stub's cards; importing this module loads no backend."""

import json
import os
from pathlib import Path

import numpy as np
import pynvml

WIDTH = 64
UNITS = 1024
BATCHES = 64
EXTRA = 16384  # numbers that the second card holds for each sample in addition


def batches(batch_size=32):
    """Batches of a static shape, because kernels on the card do not compute any."""
    import tensorflow as tf

    ones = (
        np.ones((batch_size, WIDTH), "float32"),
        np.ones((batch_size, 1), "float32"),
    )
    with tf.device("CPU"):
        return tf.data.Dataset.from_tensors(ones).repeat(BATCHES)


def build(xla=False, witness=None):
    """A network of dense layers, built by code that lets TensorFlow take memory as it needs it."""
    import keras
    import tensorflow as tf

    seen = tf.config.list_physical_devices("GPU")
    for gpu in seen:
        tf.config.experimental.set_memory_growth(gpu, True)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(UNITS, activation="relu"),
            uneven(),
            layers.Dense(UNITS, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=xla)
    if witness is not None:
        write(witness, seen=len(seen), held=holders())
    return model


def uneven():
    """A layer that holds more on the second card of two than on the first."""
    import keras
    import tensorflow as tf

    class Uneven(keras.layers.Layer):
        def call(self, inputs):
            replica = tf.distribute.get_replica_context()
            if (
                replica is None
                or tf.get_static_value(replica.replica_id_in_sync_group) != 1
            ):
                return inputs
            extra = tf.random.uniform((tf.shape(inputs)[0], EXTRA))
            return inputs + tf.reduce_mean(extra, axis=1, keepdims=True)

    return Uneven()


def holders():
    """The bytes that each process holds, by card and pid, as the driver reports them."""
    pynvml.nvmlInit()
    cards = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [
        {
            process.pid: process.usedGpuMemory
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        }
        for card in cards
    ]


def write(path, **fact):
    """Append a line of JSON: what a trial's process found, with the command of its parent."""
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
    with Path(path).open("a") as file:
        file.write(
            json.dumps({"pid": os.getpid(), "parent": parent.split("\0"), **fact})
            + "\n"
        )
