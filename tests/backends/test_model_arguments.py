"""The arguments under which a model is built and compiled, on each backend: what a trial takes."""

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests.installed import needs

ROWS = np.zeros((64, 8), "float32"), np.zeros((64, 1), "float32")


def build(policy="float32"):
    import keras

    assert keras.config.dtype_policy().name == policy
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")])
    assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
    model.compile("sgd", "mse")
    return model


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


def test_half_precision_reaches_the_step(launched, play):
    arguments = {"dtype_policy": "mixed_bfloat16", "model_kwargs": {"policy": "mixed_bfloat16"}}
    for given in ({}, arguments):
        measured = play(launched(build_model=build, data=ROWS, **given), FitConfig(16))
        assert measured.outcome is Outcome.OK, measured.traceback


@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True)
def test_what_the_argument_says_is_compiled_and_what_is_left_to_keras_stays(launched, play):
    kinds = [
        play(launched(build_model=build, data=ROWS, jit_compile=jit_compile), FitConfig(16), role="describe")
        for jit_compile in (None, True)
    ]
    assert [described.jit_compile for described in kinds] == [False, True]  # on a CPU, Keras leaves XLA off
