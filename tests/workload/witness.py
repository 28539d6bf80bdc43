"""Workloads that write down what became of each knob.

Tests read it after the snippet of a result has run.

Each batch that is made is a line in the file that WITNESS names, as in the contracts:
samples, process, and how many were being made at once in that process. The model stands
still after its fourth step until nothing is made any more, and then writes how many
batches were ahead of it; at the end it writes how often the weights were updated.
"""

import os
import pathlib
import time

import keras

from tests.contracts import rows

STILL_AFTER = 4
QUIET_LOOKS = 20
BATCHES = 48


def witness():
    return os.environ.get("WITNESS")


def made(path):
    """The batches that were made, as numbers."""
    lines = rows.read(path) if pathlib.Path(path).exists() else []
    return [
        [int(number) for number in line.split()] for line in lines if line[0].isdigit()
    ]


def make(batch_size):
    return rows.make(int(batch_size), witness=witness())


class StandsStill(keras.callbacks.Callback):
    """After a few steps waits until nothing more is made, and writes how much was ahead."""

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 != STILL_AFTER or not witness():
            return
        count = -1
        looks = 0
        # Looks, not seconds: what makes batches stops when all of a busy machine does.
        while looks < QUIET_LOOKS:
            time.sleep(0.05)
            found = len(made(witness()))
            looks = looks + 1 if found == count else 0
            count = found
        rows.write(witness(), f"ahead {count - STILL_AFTER}")

    def on_train_end(self, logs=None):
        rows.write(witness(), f"updates {int(self.model.optimizer.iterations)}")


class Witness(keras.Sequential):
    """A network that stands still in its fit."""

    def fit(self, *args, callbacks=(), **kwargs):
        return super().fit(*args, **kwargs, callbacks=[*callbacks, StandsStill()])


def build_model(optimizer="sgd"):
    model = Witness([keras.Input((rows.WIDTH,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def build_accumulating(gradient_accumulation_steps=None):
    return build_model(
        keras.optimizers.SGD(gradient_accumulation_steps=gradient_accumulation_steps)
    )


class Dataset(keras.utils.PyDataset):
    def __init__(self, batch_size=32, samples=None, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.samples = samples

    def __len__(self):
        return -(-self.samples // self.batch_size) if self.samples else BATCHES

    def __getitem__(self, index):
        return make(self.batch_size)


def make_tfdata(batch_size, num_parallel_calls, prefetch, batches=BATCHES):
    import tensorflow as tf

    def load(number):
        x, y = tf.numpy_function(
            lambda n: make(batch_size), [number], (tf.float32, tf.float32)
        )
        return tf.ensure_shape(x, (None, rows.WIDTH)), tf.ensure_shape(y, (None, 1))

    dataset = (
        tf.data.Dataset.range(batches) if batches else tf.data.Dataset.range(1).repeat()
    )
    return dataset.map(load, num_parallel_calls=num_parallel_calls).prefetch(prefetch)


def make_batches(batch_size, batches=BATCHES):
    number = 0
    while batches is None or number < batches:
        yield make(batch_size)
        number += 1


def make_endless(batch_size):
    return make_batches(batch_size, None)


def make_arrays():
    return rows.arrays(parts=3)
