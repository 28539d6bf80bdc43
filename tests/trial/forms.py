"""What `train_step` gets for each form of data: from plain `fit`, and in every phase of a trial."""

import functools
import json
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from autofit.records.machine import ON_CPU
from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.wire import MESSAGES, TASKS, Task
from autofit.trial.worker import main, measure
from autofit.workload.workload import Workload

WIDTH, SAMPLES, BATCH = 4, 64, 8
SECONDS = 0.05  # of each timing: the structures of the batches are looked at, not the rates
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
        with tf.GradientTape() as tape:
            loss = self.test_step(data)["loss"]
        variables = self.dense.trainable_variables
        self.own_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        x = tf.nest.flatten(data)[0]
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=(None, WIDTH))
        x = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
        return {"loss": keras.ops.mean(self.dense(keras.ops.reshape(keras.ops.cast(x, "float32"), (-1, WIDTH))))}


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
    "tf.data, ragged": lambda: (tf.ragged.constant([[1.0] * (1 + i % WIDTH) for i in range(SAMPLES)]), y_of()),
    "tf.data, sparse": lambda: (tf.sparse.from_dense(x_of()), y_of()),
}
OPTIONS = {"inputs": {"validation_split": 0.25}, "labels": {"class_weight": {0: 1.0, 1: 5.0}}}


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


def played(folder, workload, role):
    """Do the task of a trial in this process, as the trial's own would; returns what it sent."""
    spec = TrialSpec(role, FitConfig(BATCH), Limits(None, 8 * 2**30), 60.0, SECONDS, batch_sizes=(4,))
    workload.save(folder)
    (folder / "task.json").write_bytes(TASKS.dump_json(Task(spec, ON_CPU)))
    pipe = os.open(folder / "messages", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    main.play(folder, "task.json", pipe)
    os.close(pipe)
    return [MESSAGES.validate_json(line) for line in (folder / "messages").read_bytes().splitlines()]


def plain_fit(form, path, **kwargs):
    """What the user runs: `fit` on the data."""
    data, model = FORMS[form](), build_witness(path)
    if form in ARRAYS:
        x, y = data if isinstance(data, tuple) else (data, None)
        model.fit(x, y, batch_size=BATCH, verbose=0, **kwargs)
    else:
        model.fit(data, steps_per_epoch=2, verbose=0, **kwargs)


def structures(folder, form):
    """The structures of one form by who handed them over, the failures, and the described number of samples."""
    path, options = folder / "structures", OPTIONS.get(form, {})
    validation = {} if "validation_split" in options else {"validation": FORMS[form]}
    workload = Workload(build_witness, FORMS[form], model_kwargs={"path": str(path)}, fit_kwargs=options, **validation)
    sent, written = {}, {}
    for role in (*Role, "plain"):
        if role == "plain":
            plain_fit(form, path, **options)
        else:
            sent[role] = played(folder, workload, role)
        written[role] = sorted(set(path.read_text().splitlines())) if path.exists() else []
        path.unlink(missing_ok=True)
    failures = [message.failure.reason for messages in sent.values() for message in messages if message.failure]
    samples = [message.description.sample_count for message in sent[Role.DESCRIBE] if message.description]
    return {**written, "failures": failures, "samples": samples}


def run(folder):
    """Print a line of JSON for each form."""
    main.preload()
    measure._COMPUTE_SECONDS = measure._INPUT_SECONDS = SECONDS
    for form in FORMS:
        print(json.dumps([form, structures(pathlib.Path(folder), form)]), flush=True)
