"""Several steps in a call on JAX, whose batches Keras after 3.15.1 stacks for one program."""

import json

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests.commands import python
from tests.contracts.cases import check_rates
from tests.installed import needs

BACKEND = "jax"
MIB = 2**20
WIDTH, BATCH, BATCHES, STEPS = MIB // 4, 1, 100, 64
# what the compiled function of a call takes first: the shape of a batch, or of a stack of them
PROGRAM = """
import json, keras, numpy as np
from autofit.backends.jax.backend import Jax

shapes = []

class Peeks(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        function = self.model.train_function

        def peeking(state, iterator):
            given = next(iterator)
            shapes.append(np.shape(keras.tree.flatten(given)[0]))
            return function(state, iter([given]))

        self.model.train_function = peeking

for eager in (False, True):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4, run_eagerly=eager)
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=2, callbacks=[Peeks()], verbose=0)
print(json.dumps([Jax().stacks_steps(), *shapes]))
"""


@pytest.fixture(scope="module")
def seen():
    """What autofit says of the installed Keras, and the shapes that calls of four steps took."""
    needs("jax")
    printed = python(
        "-c", PROGRAM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu"
    ).splitlines()[-1]
    stacks, *shapes = json.loads(printed)
    return stacks, shapes


def build():
    import keras

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def large(batch_size=BATCH, count=BATCHES):
    """Batches of a MiB for each sample."""
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return count

        def __getitem__(self, index):
            shape = batch_size, WIDTH
            return np.full(shape, index, "float32"), np.ones((batch_size, 1), "float32")

    return Batches()


def test_whether_a_call_stacks_its_batches_is_told_as_keras_does_it(seen):
    stacks, shapes = seen
    assert {tuple(shape) for shape in shapes} == {(4, 2, 3) if stacks else (2, 3)}


def test_a_call_holds_the_batches_that_it_stacks(seen, launched, play):
    if not seen[0]:
        pytest.skip(
            "this Keras takes the batches of a call one by one; one after 3.15.1 stacks them"
        )
    launcher = launched(build_model=build, data=large)
    one, many = (
        play(launcher, FitConfig(BATCH, steps_per_execution=steps))
        for steps in (1, STEPS)
    )
    assert one.outcome is Outcome.OK, one.evidence
    check_rates(many, STEPS * BATCH)
    assert many.host_peak_bytes > one.host_peak_bytes + (STEPS - 1) * MIB


def test_an_epoch_of_fewer_batches_than_a_call_and_one_that_ends_within_a_call_count_whole(
    launched, play
):
    for count in (STEPS // 2, STEPS + STEPS // 2):
        launcher = launched(build_model=build, data=large, data_kwargs={"count": count})
        config = FitConfig(BATCH, steps_per_execution=STEPS)
        measured = play(launcher, config, longest_epoch_seconds=60.0)
        check_rates(measured, STEPS * BATCH)
        assert (measured.epoch_samples, measured.epoch_gap_unread) == (
            count * BATCH,
            "",
        )
