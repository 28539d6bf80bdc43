"""A user's program for the contracts: a small model, and rows in every form of data.

Its import loads no backend.
"""

import ctypes
import functools
import os
import pathlib
import threading
import time

import numpy as np

WIDTH, BATCHES, ARRAY_ROWS = 64, 24, 512
SECONDS = 0.02  # that making a batch takes: it sleeps, so that no machine is faster
START_SECONDS = 0.3  # that a worker of a loader sleeps when it starts, in each epoch
# the lengths of sequences
SHORT, LONG = 4, 512
# of the layer that reads sequences
UNITS = 64
# batch sizes that go wrong in the fifth batch
RAISES, HANGS, SEGFAULTS, FILLS_HOST = 9, 10, 11, 12
_FIRST_BAD, _PIECE, _MOST_PIECES = 4, 32 * 2**20, 128
_lock = threading.Lock()
_busy = []
_held = []


def write(path, line):
    """Append a line to a witness."""
    if path is not None:
        with pathlib.Path(path).open("a") as file:
            file.write(f"{line}\n")


def read(path):
    """Return the lines of a witness."""
    return pathlib.Path(path).read_text().splitlines()


def make(batch_size, index=0, witness=None):
    """Make a batch.

    The witness gets its samples, its process, and how many batches this process was
    making.
    """
    with _lock:
        _busy.append(index)
        write(witness, f"{batch_size} {os.getpid()} {len(_busy)}")
    time.sleep(SECONDS)
    with _lock:
        _busy.pop()
    if index >= _FIRST_BAD:
        _misbehave(batch_size)
    return np.ones((batch_size, WIDTH), "float32"), np.ones((batch_size, 1), "float32")


def _misbehave(batch_size):
    if batch_size == RAISES:
        raise ValueError("the fifth batch is broken")
    if batch_size == HANGS:
        time.sleep(3600)
    if batch_size == SEGFAULTS:
        ctypes.string_at(0)
    if batch_size == FILLS_HOST:
        for _ in range(_MOST_PIECES):
            _held.append(np.ones(_PIECE, "uint8"))
            time.sleep(SECONDS)


def pydataset(
    batch_size=8, workers=1, max_queue_size=10, use_multiprocessing=False, witness=None
):
    knobs = {
        "workers": workers,
        "max_queue_size": max_queue_size,
        "use_multiprocessing": use_multiprocessing,
    }
    return _pydataset(
        functools.partial(make, batch_size, witness=witness), BATCHES, **knobs
    )


def sequences(batch_size=8):
    """Batches of sequences, of which one that no trial reaches is far longer than the others."""

    def of_length(index):
        length = LONG if index == 1990 else SHORT + index % 2
        return np.ones((batch_size, length, WIDTH), "float32"), np.ones(
            (batch_size, 1), "float32"
        )

    return _pydataset(of_length, 2000)


def _pydataset(make_batch, length, **knobs):
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return length

        def __getitem__(self, index):
            return make_batch(index)

        def __reduce__(
            self,
        ):  # workers that are not forks cannot find the class by its name
            return functools.partial(_pydataset, make_batch, length, **knobs), ()

    return Batches(**knobs)


def tfdata(batch_size=8, num_parallel_calls=1, prefetch=2, witness=None):
    import tensorflow as tf

    def load(number):
        types = (tf.float32, tf.float32)
        x, y = tf.numpy_function(
            lambda index: make(batch_size, int(index), witness), [number], types
        )
        return tf.ensure_shape(x, (None, WIDTH)), tf.ensure_shape(y, (None, 1))

    return (
        tf.data.Dataset.range(BATCHES)
        .map(load, num_parallel_calls=num_parallel_calls)
        .prefetch(prefetch)
    )


def loader(batch_size=8, num_workers=0, prefetch_factor=None, witness=None):
    import torch

    collate = functools.partial(_collate, batch_size, witness)
    knobs = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
    knobs |= {"worker_init_fn": _start}
    return torch.utils.data.DataLoader(
        range(BATCHES * batch_size), batch_size, collate_fn=collate, **knobs
    )


def _collate(batch_size, witness, indices):
    import torch

    return tuple(
        map(torch.from_numpy, make(len(indices), indices[0] // batch_size, witness))
    )


def _start(number):
    time.sleep(START_SECONDS)


def generator(batch_size=8, witness=None):
    for index in range(BATCHES):
        yield make(batch_size, index, witness)


def arrays(count=ARRAY_ROWS, parts=2):
    """Arrays x, y and sample weights, as many as there are to be parts."""
    return (
        np.ones((count, WIDTH), "float32"),
        np.ones((count, 1), "float32"),
        np.ones(count, "float32"),
    )[:parts]


def build_model(units=8, compiled=True, **watched):
    import keras

    inputs = keras.Input((WIDTH,))
    outputs = keras.layers.Dense(1)(
        keras.layers.Dense(units, activation="relu")(inputs)
    )
    model = (_watched_class(**watched) if watched else keras.Model)(inputs, outputs)
    if compiled:
        model.compile("adam", "mse")
    return model


def build_for_sequences():
    import keras

    layers = [keras.Input((None, WIDTH)), keras.layers.Dense(UNITS, activation="relu")]
    model = keras.Sequential(
        [*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def _watched_class(witness=None, exhausts=False):
    """A model whose loss writes down whether it gets sample weights.

    If it `exhausts`, the loss fails as the backend does without memory.
    """
    import keras

    class Watched(keras.Model):
        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            write(witness, "plain" if sample_weight is None else "weighted")
            if exhausts:
                raise _exhaustion(keras.backend.backend())
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    return Watched


def _exhaustion(backend):
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.errors.ResourceExhaustedError(
            None, None, "OOM when allocating tensor with shape[65536,65536]"
        )
    if backend == "jax":
        import jax

        return jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
        )
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")
