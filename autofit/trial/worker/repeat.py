"""An input that repeats a few batches, so that only the step takes time; loads Keras."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras

from autofit.workload.inputs.batch import mapped


class RepeatedBatches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """A dataset of `length` batches: those of `opening` once, then `batches`, repeated."""

    def __init__(
        self, batches: Sequence[Any], length: int, opening: Sequence[Any]
    ) -> None:
        super().__init__()
        self._batches = batches
        self._length = length
        self._opening = opening

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        batches = self._opening
        if index >= len(batches):
            index -= len(batches)
            batches = self._batches
        batch = batches[index % len(batches)]
        # as Keras passes a batch that has only x
        return batch if isinstance(batch, tuple | dict) else (batch,)


def repeated_tfdata(
    batches: Sequence[Any], length: int, opening: Sequence[Any], *, of_fixed_size: bool
) -> Any:
    """Return a `tf.data.Dataset` of the batches that `RepeatedBatches` has."""
    import tensorflow as tf  # not installed for other backends

    ahead = [mapped(batch, _tensor_of) for batch in opening]
    repeated = [mapped(batch, _tensor_of) for batch in batches]
    tensors = [*ahead, *repeated]
    # The dataset of all batches has an `element_spec` that fits each of them: dimensions that
    # differ have the static size None. So does the first dimension, as in a dataset that ends in
    # a partial batch, unless the data has batches of a fixed size: a step traced for another form
    # may fail.
    last = tensors[0] if of_fixed_size else mapped(tensors[0], _first_row)
    shown = [tf.data.Dataset.from_tensors(batch) for batch in (*tensors, last)]
    joined = functools.reduce(lambda done, more: done.concatenate(more), shown)
    # a generator cannot yield None
    if len(tensors) == 1 or any(leaf is None for leaf in tf.nest.flatten(tensors[0])):
        first = joined.take(len(ahead))
        cycle = joined.skip(len(ahead)).take(len(repeated)).repeat()
        options = tf.data.Options()
        # the default optimizations copy the batches into a graph
        options.experimental_optimization.apply_default_optimizations = False
        return first.concatenate(cycle).take(length).with_options(options)
    spec = joined.element_spec
    # a dataset would hold all batches on the device; a generator makes the tensors batch by batch
    del joined
    made = tf.data.Dataset.from_generator(
        lambda: itertools.chain(ahead, itertools.cycle(repeated)), output_signature=spec
    )
    return made.take(length)


def _tensor_of(leaf: Any) -> Any:
    if not hasattr(leaf, "tocoo"):  # Keras converts sparse matrices of SciPy
        return leaf
    import tensorflow as tf  # not installed for other backends

    entries = leaf.tocoo()
    places = [tf.cast(entries.row, tf.int64), tf.cast(entries.col, tf.int64)]
    indices = tf.stack(places, axis=1)
    return tf.sparse.reorder(tf.SparseTensor(indices, entries.data, entries.shape))


def _first_row(leaf: Any) -> Any:
    import tensorflow as tf  # not installed for other backends

    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.slice(leaf, [0] * leaf.shape.rank, [1, *leaf.shape[1:]])
    return leaf[:1] if len(leaf.shape) > 0 else leaf
