"""Batches whose shape depends on more than the batch size; loads Keras.

Batches may differ in shape, as in padded text: the longest determines the memory that an epoch needs. The describing
trial finds the longest and the shortest batch and saves them in the workload's folder. Every other trial trains on both,
resized to its batch size.

Some workloads accept batches of only one size. Their batch size cannot be tuned.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autofit.trial.worker.build import open_training
from autofit.trial.worker.job import TrialContext
from autofit.workload.inputs.batch import bytes_of, is_ragged, is_sparse, leaves, length_of, mapped
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.workload import Workload

_FILE = "lengths.pickle"
_FEWEST_BATCHES, _FEWEST_SECONDS = 16, 2.0  # to read before batches of the same shape count as uniform
_SCAN_SECONDS = 30.0  # longest scan of batches that differ in shape

OPENS_ALIKE = (
    "batches differ in shape, but the first two have the same shape: Keras expects this shape of all and may fail later "
    "(TypeError: generator yielded an element of shape ...). Make the first two batches differ in shape, or use tf.data"
)


@dataclass(frozen=True)
class BatchShapes:
    """The batches with the most and the fewest bytes per sample."""

    longest: Any
    shortest: Any
    count: int  # batches that were read
    complete: bool  # whether the data has no more
    opens_alike: bool  # whether the first two batches have the same shape

    def __str__(self) -> str:
        scanned = f"all {self.count}" if self.complete else f"the first {self.count}"
        return f"batches differ in shape; each trial also trains on the longest of {scanned} batches"

    def resized(self, samples: int) -> list[Any]:
        """Return the longest and the shortest batch, resized to `samples` samples by repeating or dropping some."""

        def of_leaf(leaf: Any) -> Any:
            if is_ragged(leaf) or is_sparse(leaf) or leaf.ndim == 0:
                return leaf
            return np.take(leaf, np.arange(samples) % len(leaf), axis=0)

        return [mapped(batch, of_leaf) for batch in (self.longest, self.shortest)]

    def save(self, folder: Path) -> None:
        (folder / _FILE).write_bytes(pickle.dumps(self))


def load(folder: Path) -> BatchShapes | None:
    """Load the batches that the describing trial saved; return None if all batches have the same shape."""
    path = folder / _FILE
    return pickle.loads(path.read_bytes()) if path.exists() else None


def scan(batches: Iterator[Any]) -> BatchShapes | None:
    """Find the longest and the shortest batch; return None if all batches read in the first seconds have the same shape."""
    longest = shortest = None
    opening: list[Any] = []
    count, started, complete = 0, time.perf_counter(), True
    for count, batch in enumerate(batches, start=1):
        if count <= 2:
            opening.append([leaf.shape[1:] for leaf in leaves(batch)])
        longest = batch if longest is None else max(longest, batch, key=sample_bytes)
        shortest = batch if shortest is None else min(shortest, batch, key=sample_bytes)
        seconds = time.perf_counter() - started
        if longest is shortest and count >= _FEWEST_BATCHES and seconds > _FEWEST_SECONDS:
            return None
        if seconds >= _SCAN_SECONDS:
            complete = False
            break
    return None if longest is shortest else BatchShapes(longest, shortest, count, complete, opening[0] == opening[1])


def sample_bytes(batch: Any) -> float:
    """Return the bytes per sample of a batch."""
    return float(sum(bytes_of(leaf) / max(1, length_of(leaf)) for leaf in leaves(batch)))


@dataclass(frozen=True)
class OneSize:
    """The only batch size that a workload accepts, with the reason and the remedy."""

    samples: int
    reason: str


def one_size_of_data(context: TrialContext, loaded: Workload, data: FitInput) -> OneSize | None:
    """Return the size of batches that ignore `batch_size`; None if they follow it."""
    asked = context.spec.config.batch_size
    lengths = [length_of(leaf) for leaf in leaves(data.batch())]
    if asked is None or asked in lengths or data.kind == "arrays":
        return None
    fewer = max(1, min(asked, *lengths) // 2)  # the data set may be smaller than one batch
    try:
        again = [length_of(leaf) for leaf in leaves(open_training(context.sized(fewer), loaded).batch())]
    except Exception:  # data that cannot make such small batches does follow the knob
        return None
    if again != lengths or fewer in lengths:
        return None
    return OneSize(
        data.batch_samples,
        f"the data makes batches of {data.batch_samples} samples for any batch_size. "
        "Use the argument batch_size in the function that makes the data, or fix batch_size in data_kwargs",
    )


def input_shapes(model: Any) -> list[tuple[int | None, ...]]:
    """Return the shapes of a model's inputs; empty for a model that is not built yet or declares no inputs."""
    inputs = getattr(model, "inputs", None) if model.built else None
    return [tuple(tensor.shape) for tensor in keras.tree.flatten(inputs or [])]


def one_size_of_model(model: Any) -> OneSize | None:
    """Return the batch size that a model's inputs fix; None if they fix none."""
    sizes = {shape[0] for shape in input_shapes(model)}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        return None
    return OneSize(
        int(size),
        f"the model accepts only batches of {size} samples. "
        "Remove batch_size from its Input, or fix batch_size in data_kwargs",
    )


def one_size_of_step(samples: int) -> OneSize:
    """Return the only batch size for which the train step can be traced."""
    return OneSize(
        samples,
        f"the train step accepts only batches of {samples} samples. "
        "Take the batch size from the data in train_step (ops.shape(x)[0]), or fix batch_size in data_kwargs",
    )
