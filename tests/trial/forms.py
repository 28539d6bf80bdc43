"""Every form of data, and a model whose `train_step` writes down what it gets."""

import functools
import pathlib

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
WIDTH, SAMPLES, BATCH = 4, 64, 8
FIXED = "of fixed size "


def structure(data):
    """The structure of a batch: dtypes and ranks of the leaves in their nest.

    The number of samples is left out.
    """
    if isinstance(data, dict):
        return (
            "{"
            + ", ".join(
                f"{key}: {structure(value)}" for key, value in sorted(data.items())
            )
            + "}"
        )
    if isinstance(data, tuple | list):
        return f"{type(data).__name__}({', '.join(structure(part) for part in data)})"
    if data is None:
        return "None"
    size = "" if data.shape.rank == 0 or data.shape[0] is None else FIXED
    return f"{size}{type(data).__name__} {data.dtype.name}{list(data.shape[1:])}"


class Witness(keras.Model):
    """A model without `call`, with an optimizer of its own.

    Its train step writes down the structure of its data.
    """

    def __init__(self, path):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.own_optimizer = keras.optimizers.Adam()
        self.written = pathlib.Path(path)

    def train_step(self, data):
        with self.written.open("a") as file:
            file.write(structure(data) + "\n")
        with tf.GradientTape() as tape:
            loss = self.test_step(data)["loss"]
        variables = self.dense.trainable_variables
        self.own_optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return {"loss": loss}

    def test_step(self, data):
        x = tf.nest.flatten(data)[0]
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=(None, WIDTH))
        x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
        return {
            "loss": keras.ops.mean(
                self.dense(keras.ops.reshape(keras.ops.cast(x, "float32"), (-1, WIDTH)))
            )
        }


def build_witness(path):
    model = Witness(path)
    model.compile()
    return model


def x_of(count=SAMPLES, dtype="float32"):
    return np.ones((count, WIDTH), dtype)


def y_of(count=SAMPLES):
    return np.arange(count, dtype="int32") % 2


ARRAYS = {
    "doubles": lambda: x_of(dtype="float64"),
    "x and None": lambda: (x_of(), None),
    "inputs": lambda: ([x_of(), x_of()], y_of()),
    "nested": lambda: ({"a": x_of(), "b": [x_of(), y_of()]}, {"out": y_of()}),
    "labels": lambda: (x_of(), y_of()),
    "tensors": lambda: (tf.constant(x_of()), tf.constant(y_of())),
}
SLICES = {
    "tf.data of fixed size": ARRAYS["labels"],
    "tf.data of dicts": lambda: {"a": x_of(), "b": (x_of(), y_of())},
    "tf.data, ragged": lambda: (
        tf.ragged.constant([[1.0] * (1 + i % WIDTH) for i in range(SAMPLES)]),
        y_of(),
    ),
    "tf.data, sparse": lambda: (tf.sparse.from_dense(x_of()), y_of()),
}
OPTIONS = {
    "inputs": {"validation_split": 0.25},
    "labels": {"class_weight": {0: 1.0, 1: 5.0}},
}


def arrays(form):
    return ARRAYS[form]()


def tfdata(form, batch_size=BATCH):
    data = tf.data.Dataset.from_tensor_slices(SLICES[form]())
    return data.batch(batch_size, drop_remainder="fixed" in form).prefetch(1)


def generator(batch_size=BATCH):
    while True:
        yield (x_of(batch_size), x_of(batch_size)), y_of(batch_size)


class OfX(keras.utils.PyDataset):
    """Batches of x alone."""

    def __init__(self, batch_size=BATCH, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def __len__(self):
        return SAMPLES // self.batch_size

    def __getitem__(self, index):
        return x_of(self.batch_size)


FORMS = {form: functools.partial(arrays, form) for form in ARRAYS}
FORMS |= {form: functools.partial(tfdata, form) for form in SLICES}
FORMS |= {"generator": generator, "PyDataset": OfX}


def plain_fit(form, path, kwargs):
    """What the user runs: `fit` on the data."""
    data = FORMS[form]()
    model = build_witness(path)
    if form in ARRAYS:
        x, y = data if isinstance(data, tuple) else (data, None)
        model.fit(x, y, batch_size=BATCH, verbose=0, **kwargs)
    else:
        model.fit(data, steps_per_epoch=2, verbose=0, **kwargs)
