"""Programs of the kinds that users write: train steps of their own, and data in every form that Keras takes."""

import pathlib

import keras
import numpy as np
import psutil
import tensorflow as tf

from autofit.machine.host import ProcessMemory

WIDTH, SAMPLES, BATCH = 4, 64, 8
CLASS_WEIGHT = {0: 1.0, 1: 5.0}
FIXED = "of fixed size "


def structure(data):
    """The structure of a batch: dtypes and ranks of the leaves in their nest; the number of samples left out."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{key}: {structure(value)}" for key, value in sorted(data.items())) + "}"
    if isinstance(data, tuple | list):
        return f"{type(data).__name__}({', '.join(structure(part) for part in data)})"
    if data is None:
        return "None"
    size = "" if data.shape.rank == 0 or data.shape[0] is None else FIXED
    return f"{size}{type(data).__name__} {data.dtype.name}{list(data.shape[1:])}"


class Witness(keras.Model):
    """A model without `call`, with an optimizer of its own, whose train step writes down the structure of its data."""

    def __init__(self, path):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.own_optimizer = keras.optimizers.Adam()
        self.written = pathlib.Path(path)

    def train_step(self, data):
        with self.written.open("a") as file:
            file.write(structure(data) + "\n")
        x = _dense(tf.nest.flatten(data)[0])
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.dense(x)))
        variables = self.dense.trainable_variables
        self.own_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        return {"loss": keras.ops.mean(self.dense(_dense(tf.nest.flatten(data)[0])))}


def _dense(x):
    if isinstance(x, tf.RaggedTensor):
        x = x.to_tensor(shape=(None, WIDTH))
    x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
    return keras.ops.reshape(keras.ops.cast(x, "float32"), (-1, WIDTH))


def build_witness(path):
    model = Witness(path)
    model.compile()
    return model


def _x(count=SAMPLES, dtype="float32"):
    return np.ones((count, WIDTH), dtype)


def _y(count=SAMPLES):
    return np.arange(count, dtype="int32") % 2


def array():
    return _x()


def double_array():
    return _x(dtype="float64")


def x_in_a_tuple():
    return (_x(),)


def x_and_none():
    return (_x(), None)


def list_of_inputs():
    return [_x(), _x()], _y()


def nested_inputs():
    return {"a": _x(), "b": [_x(), _y()]}, {"out": _y()}


def dict_alone():
    return {"a": _x(), "b": _y()}


def with_labels():
    return _x(), _y()


def with_weights():
    return _x(), _y(), np.ones(SAMPLES, "float32")


def tensors():
    return tf.constant(_x()), tf.constant(_y())


def tfdata_of_x(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices(_x()).batch(batch_size)


def tfdata_of_fixed_size(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices((_x(), _y())).batch(batch_size, drop_remainder=True)


def tfdata_of_x_in_a_tuple(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices((_x(),)).batch(batch_size)


def tfdata_of_dicts(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices({"a": _x(), "b": (_x(), _y())}).batch(batch_size).prefetch(1)


def tfdata_of_pairs(batch_size=BATCH, prefetch=1):
    return tf.data.Dataset.from_tensor_slices((_x(), _y())).batch(batch_size, drop_remainder=True).prefetch(prefetch)


def tfdata_of_twos(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices((_x()[:, :2], _x()[:, :2])).batch(batch_size)


def tfdata_of_ragged(batch_size=BATCH):
    rows = tf.ragged.constant([[1.0] * (1 + i % WIDTH) for i in range(SAMPLES)])
    return tf.data.Dataset.from_tensor_slices((rows, _y())).batch(batch_size)


def tfdata_of_sparse(batch_size=BATCH):
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(_x()), _y())).batch(batch_size)


def generator_of_x(batch_size=BATCH):
    while True:
        yield (_x(batch_size),)


def generator_of_tuples(batch_size=BATCH):
    while True:
        yield (_x(batch_size), _x(batch_size)), _y(batch_size)


class Batches(keras.utils.PyDataset):
    """Batches that a function of the batch size makes."""

    def __init__(self, make, batch_size=BATCH, **kwargs):
        super().__init__(**kwargs)
        self.make, self.batch_size = make, batch_size

    def __len__(self):
        return SAMPLES // self.batch_size

    def __getitem__(self, index):
        return self.make(self.batch_size)


def pydataset_of_x(batch_size=BATCH, **kwargs):
    return Batches(_x, batch_size, **kwargs)


def pydataset_of_dicts(batch_size=BATCH, **kwargs):
    return Batches(lambda size: {"a": _x(size), "b": _y(size)}, batch_size, **kwargs)


def pydataset_of_tensors(batch_size=BATCH, workers=1, max_queue_size=10):
    def make(size):
        return (tf.constant(_x(size)), tf.constant(_y(size)))

    return Batches(make, batch_size, workers=workers, max_queue_size=max_queue_size)


def pydataset_of_ragged(batch_size=BATCH, workers=1, max_queue_size=10):
    def make(size):
        return tf.ragged.constant([[1.0] * (1 + i % WIDTH) for i in range(size)]), _y(size)

    return Batches(make, batch_size, workers=workers, max_queue_size=max_queue_size)


ARRAYS = (
    array,
    double_array,
    x_in_a_tuple,
    x_and_none,
    list_of_inputs,
    nested_inputs,
    dict_alone,
    with_labels,
    with_weights,
    tensors,
)
FACTORIES = (
    tfdata_of_x,
    tfdata_of_fixed_size,
    tfdata_of_x_in_a_tuple,
    tfdata_of_dicts,
    tfdata_of_ragged,
    tfdata_of_sparse,
    generator_of_x,
    generator_of_tuples,
    pydataset_of_x,
    pydataset_of_dicts,
    pydataset_of_tensors,
    pydataset_of_ragged,
)


def plain_fit(make, path, **kwargs):
    """What the user runs: `fit` on the data."""
    data, model = make(), build_witness(path)
    if make in ARRAYS:
        x, y, weights = (*data, None, None)[:3] if isinstance(data, tuple) else (data, None, None)
        model.fit(x, y, sample_weight=weights, batch_size=BATCH, verbose=0, **kwargs)
    else:
        model.fit(data, steps_per_epoch=2, verbose=0, **kwargs)


def build_for_one_size(size=BATCH):
    """A train step that knows its batch size."""

    class OneSize(keras.Sequential):
        def train_step(self, data):
            return super().train_step(keras.tree.map_structure(lambda leaf: keras.ops.reshape(leaf, (size, -1)), data))

    model = OneSize([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def build_for_pairs():
    """A train step that takes even batches only."""

    class Pairs(keras.Sequential):
        def train_step(self, data):
            return super().train_step(keras.tree.map_structure(lambda leaf: keras.ops.reshape(leaf, (-1, 2)), data))

    model = Pairs([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def build_with_input_of_one_size(size=BATCH):
    model = keras.Sequential([keras.Input((WIDTH,), batch_size=size), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def build_dense():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def owns_its_batch(batch_size=32, prefetch=1):
    """Batches of 5, whatever is asked for."""
    return tf.data.Dataset.from_tensor_slices((_x(), _y())).batch(5).prefetch(prefetch)


class Graphs(keras.utils.PyDataset):
    """Batches of graphs of three nodes each: the first axis counts nodes."""

    def __init__(self, batch_size=BATCH, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"nodes": _x(3 * self.batch_size)}, np.ones((self.batch_size, 1), "float32")


def build_for_graphs(count=-1):
    nodes = keras.Input((WIDTH,), name="nodes")
    pooled = keras.ops.mean(keras.ops.reshape(keras.layers.Dense(4)(nodes), (count, 3, 4)), axis=1)
    model = keras.Model({"nodes": nodes}, keras.layers.Dense(1)(pooled))
    model.compile("adam", "mse")
    return model


def sequences(batch_size=BATCH):
    """Batches of sequences of 64 vectors."""
    x, y = np.ones((4 * batch_size, 64, WIDTH), "float32"), np.ones((4 * batch_size, 1), "float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True)


def build_for_sequences(kind):
    """Attention, whose products are Einsum; a recurrent layer, whose steps are a loop; or a step without a graph."""
    inputs = keras.Input((64, WIDTH))
    x = keras.layers.Dense(64, activation="gelu")(inputs)
    if kind == "attention":
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(8, 32)(x, x))
    if kind == "recurrent":
        x = keras.layers.Bidirectional(keras.layers.LSTM(64, return_sequences=True))(x)
    if kind == "eager":
        x = keras.layers.Conv1D(256, 5, activation="relu")(x)
    outputs = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse", run_eagerly=kind == "eager")
    return model


def pictures(count=1024):
    """Arrays of 256 KiB a sample, in sizes that fill the regions of the allocator."""
    x = np.empty((count, 256, 256, 1), "float32")
    x[:] = 1
    return x, np.ones((count, 1), "float32")


def few_pictures():
    return pictures(576)


def build_for_pictures():
    """A model that takes little beside its data."""
    layers = keras.Input((256, 256, 1)), keras.layers.AveragePooling2D(16), keras.layers.Flatten(), keras.layers.Dense(1)
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


def plain_peaks():
    """The peaks of host and device memory, bytes, of a `fit` on pictures that are validated on others."""
    model, held_out = build_for_pictures(), few_pictures()
    model.fit(*pictures(), batch_size=16, validation_data=held_out, verbose=0)
    used = ProcessMemory.of(psutil.Process())
    device = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return used.held + used.highest_resident - used.resident, device


class Diary(keras.callbacks.Callback):
    """A callback that writes down what it is called for."""

    def __init__(self, path):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_train_batch_end(self, batch, logs=None):
        with self.path.open("a") as file:
            file.write("batch\n")
