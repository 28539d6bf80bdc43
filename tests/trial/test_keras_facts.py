"""Facts of Keras and TensorFlow that the design rests on, pinned against the installed versions."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from keras.src.legacy.preprocessing.image import ImageDataGenerator

from autofit.workload.workload import Workload, load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

LOOK_AHEAD = """
import json, multiprocessing, sys
import keras
from autofit.workload.inputs.fit_input import BatchMaker
from autofit.workload.inputs.pydataset import proxy_class
from autofit.trial.worker.step_clock import wait_until_full
from tests import workloads as w

def ahead(workers, queue, processes):
    '''Batches made beyond those trained on, when the consumer stands still.'''
    knobs = dict(workers=workers, max_queue_size=queue, use_multiprocessing=processes)
    made, found = multiprocessing.Value("q", 0), []
    window = proxy_class()(w.Cases(8, length=1000), 1000, 40, BatchMaker(print, made), **knobs)
    def stall(batch, logs):
        if batch == 3:
            wait_until_full(lambda: made.value, 0.1)
            found.append(made.value - spare - 4)
    spare = 2  # fetched to learn the shapes
    model = w.build_model()
    model.fit(window, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stall)])
    return found[0]

settings = [(2, 4, False), (4, 8, False), (2, 4, True), (8, 4, False)]
print(json.dumps([ahead(*s) for s in settings]))
try:
    w.build_model().fit(w.Cases(8, length=2), workers=2)
except (TypeError, ValueError) as error:
    print("refused")
"""

ALLOCATOR = """
import os, sys
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB="64", TF_MKL_ALLOC_MAX_BYTES=str(64 * 2**20))
import tensorflow as tf
x = tf.ones((8 * 2**20,))
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] >= 32 * 2**20)
try:
    tf.ones((64 * 2**20,))
except tf.errors.ResourceExhaustedError:
    print("exhausted")
"""

VARIABLES = """
import keras
import numpy as np
from autofit.trial.worker.build import build_variables

class Own(keras.Model):
    def train_step(self, data):
        return {"loss": keras.ops.mean(self(data[0]))}

class Lazy(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

def functional(cls=keras.Model):
    inputs = keras.Input((2,))
    return cls(inputs, keras.layers.Dense(1)(inputs))

traces = []

def loss(y, predicted):
    traces.append(1)
    return keras.ops.mean((y - predicted) ** 2)

def after_fit(model):
    traces.clear()
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    made = [sorted(tuple(v.shape) for v in part) for part in (model.optimizer.variables, model.metrics_variables)]
    return len(traces), made

for make in (functional, lambda: functional(Own), Lazy):
    plain, built = make(), make()
    for model in (plain, built):
        model.compile("adam", loss, metrics=None if isinstance(model, Own) else ["mae"])
    build_variables(built, (np.ones((4, 2)), np.ones((4, 1))))
    was_built = built.optimizer.built
    (of_plain, made_by_plain), (of_built, made_by_built) = after_fit(plain), after_fit(built)
    print(was_built, of_plain - of_built, made_by_plain == made_by_built)
"""


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=environment or None,
    )
    return done.stdout.split("\n")


def test_the_queue_looks_one_batch_further_than_its_size_whatever_the_workers():
    ahead, refused, *_ = run(LOOK_AHEAD)
    assert all(abs(found - (queue + 1)) <= 1 for found, queue in zip(json.loads(ahead), (4, 8, 4, 4), strict=True))
    assert refused == "refused"


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_the_cpus_allocator_can_be_capped_and_counts(onednn):
    import os

    counted, exhausted, *_ = run(ALLOCATOR, **os.environ, TF_ENABLE_ONEDNN_OPTS=onednn)
    assert (counted, exhausted) == ("True", "exhausted")


def test_variables_are_made_before_a_step_of_keras_and_no_other_and_are_those_that_fit_makes():
    assert run(VARIABLES)[:3] == ["True 1 True", "False 0 True", "False 0 True"]


def test_an_iterator_of_images_can_be_sent_and_takes_another_batch_size(tmp_path):
    pictures, labels = np.arange(16.0).reshape(16, 1, 1, 1) * np.ones((1, 4, 4, 3)), np.arange(16)
    data = ImageDataGenerator(horizontal_flip=True).flow(pictures, labels, batch_size=4, shuffle=False)
    Workload(len, data).save(tmp_path)
    sent = load(tmp_path).data
    sent.batch_size = 8
    assert len(sent) == 2
    assert [list(sent[number][1]) for number in range(2)] == [list(range(8)), list(range(8, 16))]
    assert next(sent)[0].shape == (8, 4, 4, 3)
