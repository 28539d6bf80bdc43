"""What is taken from TensorFlow's private parts, and what AUTOTUNE holds, pinned against the installed version."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from autofit.records.trial import AUTOTUNE, AUTOTUNE_BATCHES

ROOT = Path(__file__).resolve().parents[2]
MEMORY = "autofit/backends/tensorflow/"
QUIET_SECONDS = 1.0

PROGRAM = """
import json, sys
import keras, numpy as np, tensorflow as tf
from autofit.backends.tensorflow.backend import TensorFlow, uses_onednn
from autofit.backends.protocol import TrainStep
from autofit.backends.tensorflow import step_program
from autofit.backends.tensorflow.step_footprint import StepFootprint, compiled_bytes
from tensorflow.python.ops import cond_v2

had_started = TensorFlow().has_started()
inputs = keras.Input((6,))
model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(4, activation="relu")(inputs)))
model.compile("adam", "mse")
model.optimizer.build(model.trainable_variables)
batch = np.ones((2, 6), "float32"), np.ones((2, 3), "float32")
variables = sum(v.numpy().nbytes for v in model.optimizer.variables + model.variables)

@tf.function
def called(x):
    return x + 1.0

@tf.function
def step(x):
    count = tf.constant(0)
    _, x = tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 2.0), (count, x))
    x = called(x)
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x)

graph = step.get_concrete_function(tf.TensorSpec((5,))).graph
op = {op.type: op for op in graph.get_operations()}

def started():
    assert (had_started, TensorFlow().has_started()) == (False, True)

def onednn():
    assert uses_onednn() is False, uses_onednn()

def loop():
    (loop,) = (op[kind] for kind in step_program._LOOPS if kind in op)
    body = step_program._body_of(loop)
    assert len(body.inputs) == len(loop.inputs) and len(body.outputs) == len(loop.outputs)
    assert any(inner.type == "Mul" for inner in body.get_operations())

def branches():
    (choice,) = (op[kind] for kind in ("If", "StatelessIf") if kind in op)
    kinds = [{inner.type for inner in branch.get_operations()} for branch in cond_v2.get_func_graphs(choice)]
    assert ["Neg" in kind for kind in kinds] == [False, True], kinds

def call():
    (call,) = (op[kind] for kind in ("PartitionedCall", "StatefulPartitionedCall") if kind in op)
    body = call.graph._get_function(call.get_attr("f").name).graph
    assert len(body.inputs) == len(call.inputs) and len(body.outputs) == len(call.outputs)

def parts():
    (found,) = StepFootprint(TrainStep(model, batch, None), onednn=False).estimates([8], compile_all=False)
    sizes = found.device_bytes_by_part
    assert min(sizes[part] for part in ("weights", "optimizer", "input_batch")) > 0, sizes

def names():
    step = StepFootprint(TrainStep(model, batch, None), onednn=False)
    step._program._read(step._graph)
    made = {buffer.part for op in step._program._operations for buffer in op.makes}
    assert made == {"activations", "gradients", "temporaries"}, made

def report():
    total = compiled_bytes(model, batch, 8)
    assert total is not None, "no report, or no total in it"
    assert total >= variables, (total, variables)

def reserve():
    @tf.function
    def recurrent(x):
        state = tf.zeros((1, 5, 11))
        layer = tf.raw_ops.CudnnRNNV3(
            input=x,
            input_h=state,
            input_c=state,
            params=tf.zeros((1000,)),
            sequence_lengths=tf.fill((5,), 7),
            rnn_mode="lstm",
        )
        return layer.reserve_space

    graph = recurrent.get_concrete_function(tf.TensorSpec((7, 5, 3))).graph
    (layer,) = (op for op in graph.get_operations() if op.type == "CudnnRNNV3")
    size = step_program.StepProgram(traced=5, batch_size=10, threads=1)._bytes(layer.outputs[3])
    assert size == 6 * 7 * 10 * 11 * 4, size

problems = {}
for check in (started, onednn, loop, branches, call, names, parts, report, reserve):
    try:
        check()
    except Exception as error:
        problems[check.__name__] = f"{type(error).__name__}: {error}"
print(json.dumps(problems))
"""

FACTS = {
    "started": ("Context._context_handle is not set by the first operation, or before", "backends/tensorflow/backend.py"),
    "onednn": ("_pywrap_util_port.IsMklEnabled() does not follow TF_ENABLE_ONEDNN_OPTS", "backends/tensorflow/backend.py"),
    "loop": ("while_v2._get_graph does not return the body of a loop", MEMORY + "step_program.py"),
    "branches": ("cond_v2.get_func_graphs does not return the branches of an If", MEMORY + "step_program.py"),
    "call": ("Graph._get_function does not return the body of a call", MEMORY + "step_program.py"),
    "names": ("operations are not named gradient_tape/…, or after their optimizer", MEMORY + "step_program.py"),
    "parts": ("a traced step has no weights, optimizer variables or batch", MEMORY + "step_footprint.py"),
    "report": ("XLA's memory-usage report is missing, or its total is not where it was", MEMORY + "step_footprint.py"),
    "reserve": (
        "a recurrent layer of cuDNN does not keep its reserve space as its fourth output",
        MEMORY + "step_program.py",
    ),
}


@pytest.fixture(scope="module")
def problems():
    """What the checks in a process of their own complain of, by the fact's key."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,  # the assertion below shows what it wrote
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fact", FACTS)
def test_the_memory_estimate_can_rest_on(problems, fact):
    meaning, file = FACTS[fact]
    assert fact not in problems, f"{meaning}; {file} rests on it: {problems[fact]}"


def test_the_buffer_of_autotune_is_small_until_it_was_full_and_ran_empty():
    """It begins with one batch, and doubles: how many it holds at last depends on how unevenly the batches are taken."""
    import tensorflow as tf

    made, lock = [], threading.Lock()

    def write(number):
        with lock:
            made.append(number)
        return np.float32(number)

    def when_quiet():
        count, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            if len(made) != count:
                count, since = len(made), time.monotonic()
            time.sleep(0.01)
        return count

    numbers = tf.data.Dataset.range(10_000).map(lambda n: tf.numpy_function(write, [n], tf.float32), num_parallel_calls=1)
    batches, even, uneven = iter(numbers.prefetch(AUTOTUNE)), [], []
    for taken in range(1, 9):
        next(batches)
        even.append(when_quiet() - taken)
    taken = 8
    for _ in range(3):
        for _ in range(50):
            next(batches)
        taken += 50
        uneven.append(when_quiet() - taken)
    assert max(even) <= AUTOTUNE_BATCHES / 2
    assert uneven[-1] >= 2 * max(even)
    assert sorted(uneven) == uneven
