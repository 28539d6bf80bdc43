"""Workloads for tests with real trials; the batch size decides what goes wrong."""

import ctypes
import os
import signal
import subprocess
import time

import keras
import numpy as np

OK, RAISES, HANGS, KILLED, SEGFAULTS, EXITS, MEMORY_ERROR = range(8, 15)
CHATTERS, LEAVES = 16, 17  # what is 16 is used as a batch size that works, too
BIG = 2048  # does not fit DEVICE_BYTES; the batch sizes above do
DEVICE_BYTES = 48 * 2**20
PIXELS = 32
_FIRST_BAD_BATCH = 4  # the fifth
_held = []


def build_model(filters=8, fail=False, steps_per_execution=1, xla=False):
    if fail:
        raise RuntimeError("the model cannot be built")
    layers = keras.layers
    maps = [layers.Conv2D(filters, 3, activation="relu") for _ in range(2)]
    model = keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 3)),
            *maps,
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    model.compile(
        optimizer="adam",
        loss="mse",
        steps_per_execution=steps_per_execution,
        jit_compile=xla,
    )
    return model


def build_slow_to_compile(seconds=60):
    """A network whose step takes long to trace once more, as XLA takes long to compile one."""

    class Slow(keras.Model):
        traces = 0

        def train_step(self, data):
            self.traces += 1
            if self.traces > 2:  # the step is traced twice before it is compiled
                time.sleep(seconds)
            return super().train_step(data)

    inputs = keras.Input((PIXELS, PIXELS, 3))
    model = Slow(
        inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(inputs))
    )
    model.compile(optimizer="adam", loss="mse", jit_compile=True)
    return model


def build_beside_a_daemon(marker):
    """The network, built by code that leaves a process in a session of its own."""
    with open(marker, "w") as file:
        subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=file)
    return build_model()


def build_recurrent(steps=PIXELS):
    """A recurrent network over the first `steps` lines of a picture."""
    layers = keras.layers
    lines = [
        layers.Reshape((PIXELS, PIXELS * 3)),
        layers.Cropping1D((0, PIXELS - steps)),
        layers.LSTM(32),
    ]
    model = keras.Sequential(
        [layers.Input((PIXELS, PIXELS, 3)), *lines, layers.Dense(1)]
    )
    model.compile(optimizer="sgd", loss="mse")
    return model


def build_after_closing(file):
    """The network, built by code that closes all files, as daemons do.

    It opens as many of its own.
    """
    os.closerange(3, 200)
    _held.append([open(file, "a") for _ in range(100)])  # noqa: SIM115  # to be kept open
    for one in _held[-1]:
        one.write("theirs")
        one.flush()
    return build_model()


class Cases(keras.utils.PyDataset):
    """Batches of ones; from the fifth on it misbehaves as the batch size says."""

    def __init__(self, batch_size, seconds=0.0, length=12, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.seconds = seconds
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= _FIRST_BAD_BATCH:
            misbehave(self.batch_size)
        time.sleep(self.seconds)
        return np.ones((self.batch_size, PIXELS, PIXELS, 3), "float32"), np.ones(
            (self.batch_size, 1), "float32"
        )


def misbehave(case):
    if case == RAISES:
        raise ValueError("the fifth picture is broken")
    if case == HANGS:
        time.sleep(3600)
    if case == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if case == SEGFAULTS:
        ctypes.string_at(0)
    if case == EXITS:
        os._exit(3)
    if case == MEMORY_ERROR:
        _held.append(np.zeros(2**50, "uint8"))
    if case == LEAVES:
        raise SystemExit("no more pictures")
    if case == CHATTERS:
        print('{"measurement": {"samples_per_second": 1e9}}', flush=True)


def opens_nothing(batch_size):
    raise FileNotFoundError("there is no folder of pictures")


def build_for_texts():
    """An embedding and a convolution over time: activations grow with the length."""
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((None,), dtype="int32"), layers.Embedding(50, 64),
         layers.Conv1D(64, 3, padding="same"),
         layers.GlobalAveragePooling1D(), layers.Dense(1)]
    )  # fmt: skip  # one item a line would be longer, not clearer
    model.compile("sgd", "mse")
    return model


class TensorFlowInside(Cases):
    """Runs an operation of TensorFlow for each batch."""

    def __getitem__(self, index):
        import tensorflow as tf

        x, y = super().__getitem__(index)
        return tf.image.flip_left_right(x).numpy(), y


class SameNumbers(Cases):
    """Augments with a random generator made once: forked workers draw the same numbers."""

    def __init__(self, batch_size, **kwargs):
        super().__init__(batch_size, **kwargs)
        self.draw = np.random.default_rng(0)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.draw.normal(size=x.shape).astype("float32"), y


def build_rows():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
