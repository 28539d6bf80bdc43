"""Arguments of `fit` beside data and knobs: which of them the user may give, and how trials and the rendered call use them.

    given by the user ──> validated ──┬──> trials: class_weight, shuffle, callbacks, validation_…
                                      └──> the call that trains: all of them, steps scaled to the chosen batch

Callbacks and class weights may be given as a function that makes them; each process that needs them calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofit.errors import UsageError
from autofit.workload.arguments import did_you_mean
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.reference import Reference

CALLBACKS, CLASS_WEIGHT, VALIDATION_SPLIT = "callbacks", "class_weight", "validation_split"
STEPS_PER_EPOCH, VALIDATION_STEPS, VALIDATION_BATCH_SIZE = "steps_per_epoch", "validation_steps", "validation_batch_size"

_IN_TRIALS = (CLASS_WEIGHT, "shuffle")
_RENDERED_ONLY = ("epochs", "initial_epoch", "verbose", "validation_freq")
_COUNTS = (VALIDATION_STEPS, VALIDATION_BATCH_SIZE, STEPS_PER_EPOCH)
_TAKEN = (*_IN_TRIALS, CALLBACKS, VALIDATION_SPLIT, *_COUNTS, *_RENDERED_ONLY)
_REFUSED = {
    "x": "give it as data",
    "y": "give it in data, as (x, y)",
    "sample_weight": "give it in data, as (x, y, sample_weight)",
    "validation_data": "give it as validation",
    "batch_size": "it is tuned; write your present value in baseline, a fixed value in space",
    **dict.fromkeys(("workers", "max_queue_size", "use_multiprocessing"), "it is tuned; write a fixed value in space"),
}
MADE = (CALLBACKS, CLASS_WEIGHT)
"""Arguments that may be given as a function that makes them."""

_WITH_TARGETS = 2  # parts of (x, y)


def validated(fit_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Check the user's arguments of `fit`; return them with plain numbers in `class_weight`."""
    options = dict(fit_kwargs)
    for name, value in options.items():
        key = f"fit_kwargs.{name}"
        if name in _REFUSED:
            raise UsageError(f"autofit sets {name} of fit itself: {_REFUSED[name]}", key=key)
        if name not in _TAKEN:
            hint = did_you_mean(name, _TAKEN)
            raise UsageError(f"fit has no such argument to give here{hint} Allowed: {', '.join(_TAKEN)}", key=key)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if name in _COUNTS and value is not None and not is_count:
            raise UsageError(f"{value!r} is not allowed; give a whole number from 1 on", key=key)
    split = options.get(VALIDATION_SPLIT)
    if split is not None and not (isinstance(split, int | float) and 0 <= split < 1):
        raise UsageError(
            f"{split!r} is not allowed; give a share of at least 0 and below 1",
            key=f"fit_kwargs.{VALIDATION_SPLIT}",
        )
    if options.get(CLASS_WEIGHT) is not None and not is_made(options[CLASS_WEIGHT]):
        options[CLASS_WEIGHT] = _class_weight(options[CLASS_WEIGHT])
    callbacks = options.get(CALLBACKS)
    if not (callbacks is None or isinstance(callbacks, list | tuple) or is_made(callbacks) or _is_callback(callbacks)):
        raise UsageError(
            f"{callbacks!r} is not allowed; give a list of callbacks, or a function that returns one "
            "(in YAML path/to/file.py:function)",
            key=f"fit_kwargs.{CALLBACKS}",
        )
    return {name: value for name, value in options.items() if value is not None}


def _class_weight(weights: Any) -> dict[int, float]:
    """Class weights with plain numbers: they are often computed with NumPy and are saved as JSON."""
    try:
        return {int(label): float(weight) for label, weight in dict(weights).items()}
    except (TypeError, ValueError):
        raise UsageError(
            f"{weights!r} is not allowed; give a weight for each class number, such as {{0: 1.0, 1: 5.0}}",
            key=f"fit_kwargs.{CLASS_WEIGHT}",
        ) from None


def is_made(value: Any) -> bool:
    """Whether the value of an argument is a function that makes it."""
    return isinstance(value, Reference) or (callable(value) and not _is_callback(value))


def _is_callback(value: Any) -> bool:
    return hasattr(value, "on_epoch_end")


def resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with functions replaced by what they return."""
    values = {name: value.resolve() if isinstance(value, Reference) else value for name, value in options.items()}
    return validated({name: value() if is_made(value) else value for name, value in values.items()})


def of_training(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that apply to every `fit` of a trial, on any data."""
    return {name: options[name] for name in _IN_TRIALS if name in options}


def samples_of_epoch(options: Mapping[str, Any], batch_size: int | None) -> int | None:
    """Samples in an epoch of `steps_per_epoch` batches of the size that they were written for; None if not given."""
    steps = options.get(STEPS_PER_EPOCH)
    return None if steps is None or batch_size is None else int(steps * batch_size)


def rendered(
    options: Mapping[str, Any], chosen: int | None, written_for: int | None, *, scale_validation: bool
) -> dict[str, Any]:
    """The user's arguments for the call that trains with the chosen batch size.

    Steps are scaled to keep the number of samples of an epoch and, if the validation data takes the batch size, of a
    validation. `written_for` is the batch size that the arguments were written for.
    """
    if not chosen or not written_for:
        return dict(options)
    scaled = {STEPS_PER_EPOCH, *([VALIDATION_STEPS] if scale_validation else [])} & set(options)
    return {**options, **{name: math.ceil(options[name] * written_for / chosen) for name in scaled}}


def with_class_weight(batch: Any, options: Mapping[str, Any]) -> Any:
    """Complete a batch for `train_step` as `fit` does: (x, y) with class weights becomes (x, y, sample_weight)."""
    if CLASS_WEIGHT not in options or not isinstance(batch, tuple) or len(batch) != _WITH_TARGETS:
        return batch
    return (*batch, np.ones(length_of(leaves(batch)[0]), np.float32))
