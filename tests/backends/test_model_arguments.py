"""The arguments under which a model is built and compiled, on each backend: what a trial takes."""

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig
from tests.installed import needs

BATCH, WIDTH, LAYERS = 512, 4096, 12
LAYER_BYTES = 4 * BATCH * WIDTH


def rows():
    return np.zeros((4 * BATCH, 8), "float32"), np.zeros((4 * BATCH, 1), "float32")


def build():
    """Wide layers with few weights, so that what a step keeps for the backward pass is most of its memory.

    Keras computes a normalization in float32, and on a processor without AVX-512 that costs torch what half precision
    saves elsewhere.
    """
    import keras

    inputs = keras.Input((8,))
    wide = keras.layers.Dense(WIDTH, use_bias=False)(inputs)
    for _ in range(LAYERS):
        wide = keras.layers.Activation("tanh")(keras.layers.Activation("gelu")(wide))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(wide))
    model.compile("sgd", "mse")
    return model


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


@pytest.mark.quiet
def test_half_precision_reaches_the_step(launched, play):
    plain = play(launched(build_model=build, data=rows), FitConfig(BATCH))
    half = play(launched(build_model=build, data=rows, dtype_policy="mixed_bfloat16"), FitConfig(BATCH))
    assert (plain.outcome, half.outcome) == (Outcome.OK, Outcome.OK)
    assert half.host_peak_bytes < plain.host_peak_bytes - 4 * LAYER_BYTES


@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True)
def test_what_the_argument_says_is_compiled_and_what_is_left_to_keras_stays(launched, play):
    kinds = [
        play(launched(build_model=build, data=rows, jit_compile=jit_compile), FitConfig(BATCH), role="describe")
        for jit_compile in (None, True)
    ]
    assert [described.jit_compile for described in kinds] == [False, True]  # on a CPU, Keras leaves XLA off
