"""Find what else in a model depends on the batch size; loads Keras."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np

from autofit.backends.protocol import optimizers_of
from autofit.records.description import BatchDependence
from autofit.trial.worker.build import is_own
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.own_modules import package_of

_OWN_METHODS = ("train_step", "compute_loss")
# in the names of what counts train steps, in Keras's schedules and in the user's own
_COUNTS = re.compile("(steps?|boundaries|iterations?|iters?|updates?)$|^_?warm_?up$")
_SAMPLES = 4  # that a loss is computed of, and of their halves
_TOLERANCE = 1e-3  # relative; sums in float32 differ by less

# "mean" and "sum" are losses that are made of those of single samples
_Kind = Literal["mean", "sum", "loss"]


def dependences_of(model: Any, batch: Any) -> Iterator[BatchDependence]:
    """Find the parts of a compiled model that train differently on batches of another size.

    `batch` is one of the data: x, (x, y) or (x, y, sample_weight).
    """
    for optimizer in optimizers_of(model):
        yield from _of_optimizer(getattr(optimizer, "inner_optimizer", optimizer))
    yield from _of_losses(model, batch)
    for method in _OWN_METHODS:
        if is_own(model, method):
            yield BatchDependence("method", f"{type(model).__name__}.{method}")
    for layer in _layers(model):
        yield from _of_layer(layer)


def _of_layer(layer: Any) -> Iterator[BatchDependence]:
    name = type(layer).__name__
    if "BatchNorm" in name and getattr(layer, "trainable", True):
        yield BatchDependence("normalization", name)
    call = getattr(type(layer), "call", None)
    code = getattr(call, "__code__", None)
    adds_loss = code is not None and "add_loss" in code.co_names
    if adds_loss and package_of(layer) != "keras":
        yield BatchDependence("method", f"{name}.add_loss")


def _layers(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        yield layer
        if type(layer).__name__ == "TorchModuleWrapper":
            yield from layer.module.modules()  # PyTorch's own


def _of_optimizer(optimizer: Any) -> Iterator[BatchDependence]:
    rate = getattr(optimizer, "_learning_rate", None)
    if getattr(optimizer, "ema_overwrite_frequency", None):
        name = type(optimizer).__name__
        yield BatchDependence("schedule", name, ("ema_overwrite_frequency",))
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        attributes = vars(rate).items()
        counts = [
            name.lstrip("_") for name, value in attributes if _is_count(name, value)
        ]
        yield BatchDependence(
            "schedule", type(rate).__name__, tuple(dict.fromkeys(counts))
        )
    elif callable(rate) and not hasattr(rate, "assign"):  # variables can be called, too
        yield BatchDependence(
            "schedule", getattr(rate, "__name__", type(rate).__name__)
        )


def _is_count(name: str, value: Any) -> bool:
    """Return whether an attribute of a schedule is a number of train steps, or a list of them."""
    if not _COUNTS.search(name) or isinstance(value, bool):
        return False
    if isinstance(value, int | float | np.number):
        return bool(value > 1)
    return isinstance(value, list | tuple)


def _of_losses(model: Any, batch: Any) -> Iterator[BatchDependence]:
    losses = leaves(getattr(model, "loss", None))
    outputs = list(getattr(model, "outputs", None) or [])
    for given in losses:
        try:
            loss = keras.losses.get(given)
        except ValueError:  # an attribute of the user's own that has this name
            continue
        kind: _Kind = "mean" if package_of(loss) == "keras" else "loss"
        has_targets = isinstance(batch, tuple) and len(batch) > 1
        if has_targets and len(losses) == len(outputs) == 1:
            # The user's loss may take only what the model really returns.
            with contextlib.suppress(Exception), keras.device("cpu"):
                kind = _kind_of_loss(loss, batch[1], outputs[0].shape[1:])
        if kind != "mean":
            yield BatchDependence(kind, getattr(loss, "__name__", type(loss).__name__))


def _kind_of_loss(loss: Any, targets: Any, shape: Sequence[int]) -> _Kind:
    """Return "mean" or "sum" if a loss is that of its samples' losses, otherwise "loss"."""
    count = min(_SAMPLES, length_of(targets)) // 2 * 2
    random = np.random.default_rng(0)
    predicted = random.uniform(0.1, 0.9, (count, *shape)).astype(np.float32)

    def of(samples: slice) -> float:
        value = loss(
            keras.ops.convert_to_tensor(targets[samples]),
            keras.ops.convert_to_tensor(predicted[samples]),
        )
        return float(keras.ops.mean(value))

    whole = of(slice(count))
    of_halves = of(slice(count // 2)) + of(slice(count // 2, count))
    if np.isclose(whole, of_halves / 2, rtol=_TOLERANCE):
        return "mean"
    return "sum" if np.isclose(whole, of_halves, rtol=_TOLERANCE) else "loss"
