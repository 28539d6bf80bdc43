"""Models with a `fit` of their own, and the arguments under which a model is built."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from tests.commands import python
from tests.installed import needs

BACKEND = "jax"
WIDTH = 8
DATA = np.ones((256, WIDTH), "float32"), np.ones((256, 1), "float32")


def build(kind):
    import keras

    class Preprocesses(keras.Model):
        """Takes arrays only, and prepares them itself, as the models of keras-hub do."""

        def fit(self, x=None, y=None, batch_size=None, **kwargs):
            if not isinstance(x, np.ndarray):
                raise TypeError(f"this fit takes arrays, not {type(x).__name__}")
            return super().fit(np.asarray(x) / 2, y, batch_size=batch_size, **kwargs)

    class Loops(keras.Model):
        def fit(self, x=None, y=None, batch_size=32, **kwargs):
            self(x[:batch_size])

    classes = {"preprocesses": Preprocesses, "loops": Loops}
    inputs = keras.Input((WIDTH,))
    model = classes[kind](inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def test_a_model_with_a_fit_of_its_own_is_measured_with_the_data_that_it_takes(
    launched, play
):
    launcher = launched(
        build_model=build, data=DATA, model_kwargs={"kind": "preprocesses"}
    )
    described = play(launcher, FitConfig(16), role="describe")
    assert described.input_kind == "arrays", described
    measured = play(launcher, FitConfig(16))
    assert measured.outcome is Outcome.OK, measured.traceback
    assert (
        min(measured.compute_samples_per_second, measured.input_samples_per_second) > 0
    )


def test_a_fit_that_does_not_report_its_steps_is_refused(launched, play):
    with pytest.raises(
        UsageError,
        match=r"the fit of Loops ran without .* super\(\)\.fit\(\.\.\., callbacks=callbacks\)",
    ):
        play(
            launched(build_model=build, data=DATA, model_kwargs={"kind": "loops"}),
            FitConfig(16),
        )


def build_in_half_precision():
    import keras

    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(4),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    assert model.layers[0].compute_dtype == "bfloat16"
    model.compile("sgd", "mse")
    return model


def test_the_precision_and_the_compilation_that_were_asked_for_reach_the_step(
    launched, play
):
    for jit_compile in (False, True):
        asked = {"dtype_policy": "mixed_bfloat16", "jit_compile": jit_compile}
        launcher = launched(build_model=build_in_half_precision, data=DATA, **asked)
        assert play(launcher, FitConfig(16), role="describe").jit_compile is jit_compile
    measured = play(launcher, FitConfig(16))
    assert measured.outcome is Outcome.OK, measured.traceback


IDLE = """
import jax, numpy
from types import SimpleNamespace
from autofit.trial.worker.bench import CALLS, Bench

waited, jax.block_until_ready = [], lambda batch: waited.append(batch)
model = Bench.idle_model(SimpleNamespace(method=CALLS["fit"], has_own_method=False), 1)
model.fit(numpy.ones((8, 2)), numpy.ones((8, 1)), batch_size=4, verbose=0)
print([[leaf.shape for leaf in batch[:2]] for batch in waited])
"""


def test_the_input_alone_waits_until_jax_has_copied_each_batch():
    needs("jax")
    assert python("-c", IDLE, KERAS_BACKEND="jax").splitlines()[-1] == str(
        [[(4, 2), (4, 1)]] * 2
    )


def build_tiny():
    import keras

    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def test_epochs_that_are_over_in_a_call_are_timed(launched, play):
    """More than a hundred epochs pass in a second.

    A fixed number of steps would not last as long.
    """
    launcher = launched(build_model=build_tiny, data=DATA)
    config = FitConfig(2, steps_per_execution=128)
    seconds = {"measure_seconds": 3.0}
    measured = play(launcher, config, longest_epoch_seconds=60.0, **seconds)
    assert measured.outcome is Outcome.OK, measured.traceback
    assert measured.epoch_samples == len(DATA[0])
