"""Batches that stand for an epoch: the longest and the shortest, and an input that repeats a few; loads Keras.

Batches may differ in shape, as in padded text: the longest determines the memory that an epoch needs. The describing
trial finds the longest and the shortest batch and saves them in the workload's folder. Every other trial trains on both,
resized to its batch size. An input that repeats batches costs almost nothing, so that only the step takes time.
"""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autofit.errors import UsageError
from autofit.trial.folder import explained_errors
from autofit.workload.inputs.batch import bytes_of, is_ragged, is_sparse, leaves, length_of, mapped

_FILE = "lengths.pickle"
# to read before batches of the same shape count as uniform
_FEWEST_BATCHES = 16
_FEWEST_SECONDS = 2.0
# of batches that have not the size of the first: fewer are the last ones of epochs
_SEVERAL_SHARE = 0.1
_SCAN_SECONDS = 30.0  # longest scan of batches that differ in shape


@dataclass(frozen=True)
class BatchShapes:
    """The batches with the most and the fewest bytes per sample; the one with the most bytes if sizes differ."""

    longest: Any
    shortest: Any
    count: int  # batches that were read
    # the batch size for which full ones have several sizes; None if they have one
    asked: int | None = None

    def __str__(self) -> str:
        differ = (
            "differ in shape"
            if self.asked is None
            else "have several sizes, and rates count their samples"
        )
        return f"batches {differ}; each trial also trains on the longest of the first {self.count} batches"

    def resized(self, samples: int) -> list[Any]:
        """Return the longest and the shortest batch, resized to a batch size of `samples` by repeating or dropping some."""

        def of_leaf(leaf: Any) -> Any:
            if is_ragged(leaf) or is_sparse(leaf) or leaf.ndim == 0:
                return leaf
            size = samples if self.asked is None else math.ceil(len(leaf) * samples / self.asked)
            return np.take(leaf, np.arange(size) % len(leaf), axis=0)

        return [mapped(batch, of_leaf) for batch in (self.longest, self.shortest)]

    def save(self, folder: Path) -> None:
        with explained_errors(folder, UsageError):
            (folder / _FILE).write_bytes(pickle.dumps(self))


def load(folder: Path) -> BatchShapes | None:
    """Load the batches that the describing trial saved; return None if all batches have the same shape."""
    path = folder / _FILE
    return pickle.loads(path.read_bytes()) if path.exists() else None


def scan(batches: Iterator[Any], asked: int | None = None) -> BatchShapes | None:
    """Find the longest and the shortest batch; return None if all batches read in the first seconds have the same shape."""
    longest = shortest = largest = None
    sizes = []
    count = 0
    started = time.perf_counter()
    for count, batch in enumerate(batches, start=1):
        longest = batch if longest is None else max(longest, batch, key=sample_bytes)
        shortest = batch if shortest is None else min(shortest, batch, key=sample_bytes)
        largest = batch if largest is None else max(largest, batch, key=bytes_of)
        sizes.append(length_of(leaves(batch)[0]))
        seconds = time.perf_counter() - started
        if longest is shortest and count >= _FEWEST_BATCHES and seconds > _FEWEST_SECONDS:
            break
        if seconds >= _SCAN_SECONDS:
            break
    if asked and sum(size != sizes[0] for size in sizes[:-1]) > _SEVERAL_SHARE * count:
        return BatchShapes(largest, shortest, count, asked)
    return None if longest is shortest else BatchShapes(longest, shortest, count)


def sample_bytes(batch: Any) -> float:
    """Return the bytes per sample of a batch."""
    return float(sum(bytes_of(leaf) / max(1, length_of(leaf)) for leaf in leaves(batch)))


class RepeatedBatches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """An input of `length` batches: those of `opening` once, then `batches` repeated in this order."""

    def __init__(self, batches: Sequence[Any], length: int, opening: Sequence[Any]) -> None:
        super().__init__()
        self._batches = batches
        self._length = length
        self._opening = opening

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        after = index - len(self._opening)
        batch = self._opening[index] if after < 0 else self._batches[after % len(self._batches)]
        # as Keras passes a batch that has only x
        return batch if isinstance(batch, tuple | dict) else (batch,)


def repeated_tfdata(
    batches: Sequence[Any], length: int, opening: Sequence[Any], *, of_fixed_size: bool
) -> Any:
    """Return the same as a `tf.data.Dataset`."""
    import tensorflow as tf  # not installed for other backends

    def tensor_of(leaf: Any) -> Any:
        if not hasattr(leaf, "tocoo"):  # Keras converts sparse matrices of SciPy
            return leaf
        entries = leaf.tocoo()
        indices = tf.stack([tf.cast(entries.row, tf.int64), tf.cast(entries.col, tf.int64)], axis=1)
        return tf.sparse.reorder(tf.SparseTensor(indices, entries.data, entries.shape))

    def first_row(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.slice(leaf, [0] * leaf.shape.rank, [1, *leaf.shape[1:]])
        return leaf[:1] if len(leaf.shape) > 0 else leaf

    # Dimensions that differ between the batches have the static size None. So does the first dimension, as in a dataset
    # that ends in a partial batch, unless the data has batches of a fixed size: a step traced for another form may fail.
    tensors = [mapped(batch, tensor_of) for batch in (*opening, *batches)]
    first = tensors[0] if of_fixed_size else mapped(tensors[0], first_row)
    shown = [tf.data.Dataset.from_tensors(batch) for batch in (*tensors, first)]
    # its element_spec fits all of them
    joined = functools.reduce(lambda done, more: done.concatenate(more), shown)
    # a generator cannot yield None
    if len(tensors) == 1 or any(leaf is None for leaf in tf.nest.flatten(tensors[0])):
        ahead = joined.take(len(opening))
        cycle = joined.skip(len(opening)).take(len(batches)).repeat()
        options = tf.data.Options()
        # the default optimizations copy the batches into a graph
        options.experimental_optimization.apply_default_optimizations = False
        return ahead.concatenate(cycle).take(length).with_options(options)
    spec = joined.element_spec
    # a dataset would hold all batches on the device; a generator makes the tensors batch by batch
    del joined, shown
    return tf.data.Dataset.from_generator(
        lambda: itertools.chain(tensors[: len(opening)], itertools.cycle(tensors[len(opening) :])),
        output_signature=spec,
    ).take(length)
