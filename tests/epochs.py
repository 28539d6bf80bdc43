"""Data whose epochs take a known time to begin, beside batches of a known time."""

import math
import os
import time

import keras
import numpy as np

START_SECONDS, BATCH, BATCH_SECONDS = 0.3, 20, 0.02
LONG, SHORT = 400, 10  # batches: 8 s, of which only the beginning is timed, and 0.2 s
BUFFER = 300  # samples that are shuffled
RATE = BATCH / BATCH_SECONDS  # samples/s, if nothing else takes time


def rows():
    return np.ones((BATCH, 4), "float32"), np.ones((BATCH, 1), "float32")


class SlowStart(keras.utils.PyDataset):
    """Sleeps at the beginning of each epoch."""

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(BATCH_SECONDS)
        return rows()

    def on_epoch_begin(self):
        time.sleep(START_SECONDS)


def slow_generator(starts=os.devnull):
    """Write a line when it begins; Keras draws on it in all epochs."""
    with open(starts, "a") as file:
        file.write("begins\n")
    while True:
        time.sleep(BATCH_SECONDS)
        yield rows()


def shuffled(length):
    """A dataset of `length` batches whose samples come in pieces of five.

    The samples take time before they are shuffled.
    """
    import tensorflow as tf

    def slow(index):
        time.sleep(BATCH_SECONDS / 4)
        return np.ones((5, 4), "float32"), np.ones((5, 1), "float32")

    def piece(index):
        x, y = tf.numpy_function(slow, [index], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (5, 4)), tf.ensure_shape(y, (5, 1))

    pieces = (
        tf.data.Dataset.range(4 * length)
        .map(piece)
        .shuffle(BUFFER // 5)
        .batch(4, drop_remainder=True)
    )
    return pieces.map(
        lambda x, y: (tf.reshape(x, (BATCH, 4)), tf.reshape(y, (BATCH, 1)))
    )


def arrays(length):
    return np.ones((length * BATCH, 4), "float32"), np.ones(
        (length * BATCH, 1), "float32"
    )


def includes_the_start(measured, length):
    """Whether the rate of epochs includes the sleep at their beginning.

    No machine makes the sleep shorter.
    """
    epoch = length * BATCH / measured.samples_per_second
    if length < LONG:
        return epoch > 0.99 * (length * BATCH_SECONDS + START_SECONDS)
    steady = length * BATCH / measured.steady_samples_per_second
    return math.isclose(epoch - steady, measured.epoch_gap_seconds, rel_tol=1e-6) and (
        measured.epoch_gap_seconds + measured.step_seconds > 0.99 * START_SECONDS
    )
