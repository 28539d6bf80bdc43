"""A model of keras-hub, which takes arrays and prepares them in a `fit` of its own."""

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed"
)
BACKEND = "jax"
EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"


def build_causal_lm():
    return runpy.run_path(str(EXAMPLE))["build_model"]()


TEXTS = np.array(["a short text", "text a", "short short"] * 40)


def test_a_model_of_keras_hub_is_measured(launched, play):
    launcher = launched(build_model=build_causal_lm, data=TEXTS)
    described = play(launcher, FitConfig(8), role="describe")
    assert described.input_kind == "arrays", described
    measured = play(launcher, FitConfig(16))
    assert measured.outcome is Outcome.OK, measured.traceback
    assert (
        min(measured.compute_samples_per_second, measured.input_samples_per_second) > 0
    )
