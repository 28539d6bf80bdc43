"""How Keras runs `fit`, `predict` and `evaluate`: their arguments, hooks, functions and attributes. Loads Keras."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from autofit.records.states import Phase


@dataclass(frozen=True)
class KerasCall:
    """A method of `keras.Model` that runs a step on each batch."""

    name: str
    hook: str  # callbacks have methods `on_{hook}_begin`, `on_{hook}_batch_end`, …
    function: str  # compiled; it runs the model's `step`
    step: str
    stop: str  # an attribute of the model: the method ends after a step if it is true
    phase: Phase = Phase.INFERENCE

    @property
    def trains(self) -> bool:
        return self.phase is Phase.TRAINING

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of `fit` as this method takes them, without those that it does not take."""
        takes = inspect.signature(getattr(keras.Model, self.name)).parameters
        if not self.trains and "steps_per_epoch" in given:
            given = {**given, "steps": given["steps_per_epoch"]}
        return {name: value for name, value in given.items() if name in takes}

    def is_own(self, model: Any) -> bool:
        """Return whether a model's method is not Keras's, as in keras-hub, which preprocesses the data there."""
        return self.name in vars(model) or getattr(type(model), self.name) is not getattr(keras.Model, self.name)


FIT = KerasCall("fit", "train", "train_function", "train_step", "stop_training", Phase.TRAINING)
PREDICT = KerasCall("predict", "predict", "predict_function", "predict_step", "stop_predicting")
EVALUATE = KerasCall("evaluate", "test", "test_function", "test_step", "stop_evaluating")
CALLS = {call.name: call for call in (FIT, PREDICT, EVALUATE)}
