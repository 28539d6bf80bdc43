"""Arguments of `fit` other than data and knobs: those that the user may give, and their use in trials and the snippet."""
#     given by the user ──> validated ──┬──> trials: class_weight, shuffle, callbacks, validation_…
#                                       └──> snippet: all of them, with steps scaled to the chosen batch size
#
# Class weights may be given as a function that returns them; each process that needs them calls it. So may callbacks;
# `callbacks` decides which of them run in trials.

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autofit.errors import UsageError
from autofit.workload.arguments import no_such, raise_joined
from autofit.workload.callbacks import TrialCallbacks, is_callback
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.reference import Reference

FIT, PREDICT = "fit", "predict"
CALLBACKS, CLASS_WEIGHT, VALIDATION_SPLIT = "callbacks", "class_weight", "validation_split"
STEPS_PER_EPOCH, VALIDATION_STEPS, VALIDATION_BATCH_SIZE = "steps_per_epoch", "validation_steps", "validation_batch_size"

_IN_TRIALS = (CLASS_WEIGHT, "shuffle")
_RENDERED_ONLY = ("epochs", "initial_epoch", "verbose", "validation_freq")
_COUNTS = (VALIDATION_STEPS, VALIDATION_BATCH_SIZE, STEPS_PER_EPOCH)
_TAKEN = (*_IN_TRIALS, CALLBACKS, VALIDATION_SPLIT, *_COUNTS, *_RENDERED_ONLY)
_OF_INFERENCE = (CALLBACKS, "verbose")
_REFUSED = {
    "x": "give it as data",
    "y": "give it in data, as (x, y)",
    "sample_weight": "give it in data, as (x, y, sample_weight)",
    "validation_data": "give it as validation",
    **dict.fromkeys(("workers", "max_queue_size", "use_multiprocessing"), "it is tuned; write a fixed value in space"),
    "batch_size": "write batch_size=N as an argument of tune",
}
MADE = (CALLBACKS, CLASS_WEIGHT)  # arguments that may be given as a function that returns their value
_WITH_TARGETS = 2  # parts in (x, y)


def validated(fit_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Check the user's arguments of `fit`; return them with plain numbers as `class_weight`, and callbacks for trials."""
    options, errors = dict(fit_kwargs), list[UsageError]()
    for name, value in fit_kwargs.items():
        problem = form = ""
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if name in _REFUSED:
            problem = f"autofit sets {name} of fit itself: {_REFUSED[name]}"
        elif name not in _TAKEN:
            problem = no_such(name, _TAKEN)
        elif value is None:
            del options[name]
        elif name in _COUNTS and not is_count:
            form = "a whole number of at least 1"
        elif name == VALIDATION_SPLIT and not (isinstance(value, int | float) and 0 <= value < 1):
            form = "a share of the samples: at least 0 and less than 1"
        elif name == CALLBACKS and not (isinstance(value, TrialCallbacks) or is_made(value)):
            if is_callback(value) or (isinstance(value, list | tuple) and all(hasattr(one, "__dict__") for one in value)):
                options[name] = TrialCallbacks.of_objects(value)  # before they are pickled, which some of them do not allow
            else:
                form = "a list of callbacks, or a function that returns one (in a YAML file: path/to/file.py:function)"
        elif name == CLASS_WEIGHT and not is_made(value):
            try:  # plain numbers, because NumPy's cannot be saved as JSON
                options[name] = {int(label): float(weight) for label, weight in dict(value).items()}
            except (TypeError, ValueError):
                form = "a weight for each class number, such as {0: 1.0, 1: 5.0}"
        if problem or form:
            errors.append(UsageError(problem or f"{value!r} is not allowed; give {form}", key=f"fit_kwargs.{name}"))
    raise_joined(errors)
    return options


def of_inference(call: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if an argument of `fit` is given that `call`, `predict` or `evaluate`, does not take."""
    for name in options:
        if name not in _OF_INFERENCE:
            problem = f"autofit passes {' and '.join(_OF_INFERENCE)} to {call}, but not {name}; remove it"
            raise UsageError(problem, key=f"fit_kwargs.{name}")


def is_made(value: Any) -> bool:
    """Return whether an argument is given as a function that returns its value."""
    return isinstance(value, Reference) or (callable(value) and not is_callback(value))


def resolved(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the arguments for a trial, with functions replaced by what they return; callbacks may write to the folder."""
    values = {name: value.resolve() if isinstance(value, Reference) else value for name, value in options.items()}
    callbacks = values.pop(CALLBACKS, TrialCallbacks())
    if not isinstance(callbacks, TrialCallbacks):
        callbacks = TrialCallbacks.of_function(callbacks, folder)
    made = {name: value() if is_made(value) else value for name, value in values.items()}
    return {**validated(made), CALLBACKS: callbacks}


def of_training(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a trial passes to each of its calls of `fit`."""
    return {name: options[name] for name in _IN_TRIALS if name in options}


def samples_of_epoch(options: Mapping[str, Any], batch_size: int | None) -> int | None:
    """Return the samples in an epoch of `steps_per_epoch` batches of `batch_size`; None if either is not given."""
    steps = options.get(STEPS_PER_EPOCH)
    return None if steps is None or batch_size is None else int(steps * batch_size)


def rendered(
    options: Mapping[str, Any], chosen: int | None, written_for: int | None, *, scale_validation: bool
) -> dict[str, Any]:
    """Return the user's arguments, which were `written_for` a batch size, so that an epoch keeps its number of samples."""
    # the chosen batch size may apply to the validation data, too
    if not chosen or not written_for:
        return dict(options)
    scaled = {STEPS_PER_EPOCH, *([VALIDATION_STEPS] if scale_validation else [])} & set(options)
    return {**options, **{name: math.ceil(options[name] * written_for / chosen) for name in scaled}}


def with_class_weight(batch: Any, options: Mapping[str, Any]) -> Any:
    """Add sample weights to a batch (x, y) if there are class weights, because `fit` passes them to `train_step`."""
    if CLASS_WEIGHT not in options or not isinstance(batch, tuple) or len(batch) != _WITH_TARGETS:
        return batch
    return (*batch, np.ones(length_of(leaves(batch)[0]), np.float32))
