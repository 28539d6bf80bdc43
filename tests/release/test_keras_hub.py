"""Models of keras-hub, which take arrays and prepare them in a `fit` of their own."""

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed")
BACKEND = "jax"
EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "text"]


def build_causal_lm():
    return runpy.run_path(str(EXAMPLE))["build_model"]()


def build_classifier():
    import keras_hub

    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(vocabulary=WORDS), sequence_length=8
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(WORDS), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=8
    )
    return keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=2, preprocessor=preprocessor)


TEXTS = np.array(["a short text", "text a", "short short"] * 40)
LABELS = np.arange(len(TEXTS)) % 2


@pytest.mark.parametrize(
    ("build_model", "data"),
    [
        (build_causal_lm, TEXTS),
        (build_classifier, (TEXTS.astype(object), LABELS)),
    ],
)
def test_a_model_of_keras_hub_is_measured(launched, play, build_model, data):
    launcher = launched(build_model=build_model, data=data)
    described = play(launcher, FitConfig(8), role="describe")
    assert described.input_kind == "arrays", described
    measured = play(launcher, FitConfig(16))
    assert measured.outcome is Outcome.OK, measured.traceback
    assert min(measured.compute_samples_per_second, measured.input_samples_per_second) > 0
