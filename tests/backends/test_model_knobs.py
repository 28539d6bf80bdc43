"""The knobs under which a model is built and compiled, on each backend: what a trial takes, and what a tune hands over."""

import numpy as np
import pytest

from autofit.errors import UsageError
from autofit.records.states import Outcome
from autofit.records.trial import MODEL_KNOBS, FitConfig
from tests.installed import needs

BATCH, WIDTH, LAYERS = 512, 4096, 12
LAYER_BYTES = 4 * BATCH * WIDTH


def rows():
    return np.zeros((4 * BATCH, 8), "float32"), np.zeros((4 * BATCH, 1), "float32")


def build(between="tanh", sets_policy=False):
    """Wide layers with few weights, so that what a step keeps for the backward pass is most of its memory.

    Keras computes a normalization in float32, and on a processor without AVX-512 that costs torch what half precision
    saves elsewhere. XLA recomputes an activation by itself, a normalization only where it must.
    """
    import keras

    if sets_policy:
        keras.config.set_dtype_policy("float32")
    inputs = keras.Input((8,))
    wide = keras.layers.Dense(WIDTH, use_bias=False)(inputs)
    for _ in range(LAYERS):
        wide = keras.layers.Activation("gelu")(wide)
        wide = (keras.layers.Activation("tanh") if between == "tanh" else keras.layers.LayerNormalization())(wide)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(wide))
    model.compile("sgd", "mse")
    return model


@pytest.fixture(params=["tensorflow", "jax", "torch"], scope="session")
def backend(request):
    needs(request.param)
    return request.param


def test_each_is_a_knob_where_keras_can_set_it(launched, play):
    described = play(launched(build_model=build, data=rows), FitConfig(BATCH), role="describe")
    backend = described.versions["backend"]
    expected = {"dtype_policy": "float32"}
    expected |= {} if backend == "tensorflow" else {"remat": "none"}
    expected |= {} if backend == "jax" else {"jit_compile": False}
    expected |= {} if backend == "torch" else {"steps_per_execution": 1}
    assert {name: value for name, value in described.defaults.items() if name in MODEL_KNOBS} == expected
    assert described.jit_by_default


@pytest.mark.quiet
def test_half_precision_reaches_the_step(launched, play):
    launcher = launched(build_model=build, data=rows)
    plain = play(launcher, FitConfig(BATCH))
    half = play(launcher, FitConfig(BATCH, dtype_policy="mixed_bfloat16"))
    assert (plain.outcome, half.outcome) == (Outcome.OK, Outcome.OK)
    assert half.host_peak_bytes < plain.host_peak_bytes - 4 * LAYER_BYTES


@pytest.mark.quiet
@pytest.mark.parametrize("backend", ["jax", "torch"], indirect=True)
def test_rematerialization_reaches_the_step(launched, play, backend):
    launcher = launched(build_model=build, data=rows, model_kwargs={"between": "normalization"})
    plain = play(launcher, FitConfig(BATCH))
    recomputed = play(launcher, FitConfig(BATCH, remat="full"))
    assert (plain.outcome, recomputed.outcome) == (Outcome.OK, Outcome.OK)
    if backend == "jax":  # on torch, recomputing all of a functional model at once frees nothing
        assert recomputed.host_peak_bytes < plain.host_peak_bytes - LAYERS * LAYER_BYTES


def test_a_model_that_sets_its_own_policy_is_not_tried_with_another(launched, play):
    launcher = launched(build_model=build, data=rows, model_kwargs={"sets_policy": True})
    with pytest.raises(UsageError, match=r"build_model sets the dtype policy to float32.*cannot try mixed_bfloat16"):
        play(launcher, FitConfig(BATCH, dtype_policy="mixed_bfloat16"))
