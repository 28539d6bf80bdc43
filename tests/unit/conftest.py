import os
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def quick_files(monkeypatch):
    """Files of unit tests need not survive a failure of the machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Trainer:
    def fit(self, *args):
        return "trained"


class Model(Trainer):
    def save(self, path):
        return path


@pytest.fixture(autouse=True)
def keras(monkeypatch):
    """As much of Keras as the code under test reads.

    Keras itself takes seconds to import. It is on TensorFlow, in single precision.
    """
    backend = SimpleNamespace(backend=lambda: "tensorflow")
    config = SimpleNamespace(floatx=lambda: "float32")
    methods = dict.fromkeys(("evaluate", "predict", "save_weights", "export"))
    model = type("Model", (Model,), methods)
    stand_in = SimpleNamespace(
        Model=model,
        backend=backend,
        config=config,
        saving=SimpleNamespace(get_custom_objects=dict),
        distribution=SimpleNamespace(distribution=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "keras", stand_in)
    return stand_in
