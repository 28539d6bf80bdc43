"""Models and data for tests of several devices; imported by the processes of their trials."""

import math
import os

import keras
import numpy as np

WIDTH = 16
MOST = 1024  # samples


class Table(keras.utils.PyDataset):
    """Rows of numbers; the last batch holds what is left."""

    def __init__(self, batch_size=32, count=MOST, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.x, self.y = rows(count)

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, index):
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[part], self.y[part]


def rows(count=MOST):
    x = np.random.default_rng(0).random((count, WIDTH), dtype="float32")
    return x, x.sum(axis=1, keepdims=True)


def build():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def build_mirrored():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy().scope():
        return build()


def build_parallel():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return build()


def build_by_model():
    devices = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), keras.distribution.list_devices())
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=keras.distribution.LayoutMap(devices), batch_dim_name="batch")
    )
    return build()


class Witness(keras.callbacks.Callback):
    """Writes down on how many devices the training has run, at its end."""

    def on_train_end(self, logs=None):
        strategy = getattr(self.model, "distribute_strategy", None)
        layout = keras.distribution.distribution()
        count = strategy.num_replicas_in_sync if layout is None else layout.device_mesh.devices.size
        with open(os.environ["WITNESS"], "w") as file:
            file.write(f"{count} {self.params['steps']}")


def witnesses():
    return [Witness()] if "WITNESS" in os.environ else []
