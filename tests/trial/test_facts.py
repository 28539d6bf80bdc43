"""Facts about TensorFlow's private parts that estimates and limits rest on, against the installed version."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json
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
traced = StepFootprint(TrainStep(model, batch, None), onednn=False)
(footprint,) = traced.estimates([8], compile_all=False)
parts = footprint.device_bytes_by_part
traced._program._read(traced._graph)

@tf.function
def step(x):
    _, x = tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 2.0), (tf.constant(0), x))
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x)

op = {op.type: op for op in step.get_concrete_function(tf.TensorSpec((5,))).graph.get_operations()}
(loop,) = (op[kind] for kind in step_program._LOOPS if kind in op)
(choice,) = (op[kind] for kind in ("If", "StatelessIf") if kind in op)
print(json.dumps({
    "the context is made by the first operation": (had_started, TensorFlow().has_started()) == (False, True),
    "oneDNN follows its variable": not uses_onednn(),
    "a loop has a body": "Mul" in {inner.type for inner in step_program._body_of(loop).get_operations()},
    "an If has branches": [
        "Neg" in {inner.type for inner in branch.get_operations()} for branch in cond_v2.get_func_graphs(choice)
    ] == [False, True],
    "a step has parts": min(parts[part] for part in ("weights", "optimizer", "input_batch")) > 0,
    "operations have names": {buffer.part for op in traced._program._operations for buffer in op.makes}
    == {"activations", "gradients", "temporaries"},
    "XLA reports its memory": (compiled_bytes(model, batch, 8) or 0) >= variables,
}))
"""


def test_estimates_can_rest_on_the_installed_tensorflow():
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, env=environment
    )
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts == dict.fromkeys(facts, True)
