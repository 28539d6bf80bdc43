"""Sparse batches are traced for any batch size, as dense ones are."""

import pytest

from tests.commands import python

PROGRAM = """
import sys
import keras, numpy as np, scipy.sparse, tensorflow as tf
from autofit.backends.protocol import TrainStep
from autofit.backends.tensorflow.step_footprint import StepFootprint

rows = scipy.sparse.random(32, 50, 0.1, "csr", dtype="float32", random_state=0)
if sys.argv[1] == "tensor":
    entries = rows.tocoo()
    places = np.stack([entries.row, entries.col], 1).astype("int64")
    rows = tf.sparse.reorder(tf.SparseTensor(places, entries.data, rows.shape))
model = keras.Sequential([keras.Input((50,), sparse=True), keras.layers.Dense(1)])
model.compile("adam", "mse")
step = StepFootprint(TrainStep(model, (rows, np.zeros((32, 1), "float32")), None, 1, ()))
print([footprint.batch_size for footprint in step.estimates([8, 64], compile_all=False)])
"""


@pytest.mark.parametrize("form", ["scipy", "tensor"])
def test_a_step_on_sparse_input_is_traced_for_other_batch_sizes(form):
    assert (
        python("-c", PROGRAM, form, KERAS_BACKEND="tensorflow")
        .strip()
        .endswith("[8, 64]")
    )
