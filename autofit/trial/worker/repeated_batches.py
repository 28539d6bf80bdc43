"""An input that repeats a few batches: it costs almost nothing, so that only the step takes time. Loads Keras."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras

from autofit import backends
from autofit.workload.inputs.batch import mapped


def of(batches: Sequence[Any], length: int, opening: Sequence[Any], *, of_fixed_size: bool) -> Any:
    """Return an input of `length` batches: those of `opening` once, then `batches` repeated in this order.

    On TensorFlow, Keras turns every input into a `tf.data.Dataset`, and takes a dataset unchanged: `train_step` gets its
    elements with their structure (Keras 3.15 `TFDatasetAdapter`). On other backends, Keras
    takes the batches of a PyDataset one by one; a batch that has only x is passed as a tuple with one element.
    """
    if backends.current().uses_tfdata:
        return _tfdata(batches, length, opening, of_fixed_size=of_fixed_size)
    return _Batches(batches, length, opening)


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras ships no types
    """The batches of `opening`, then `batches` in turn, made in the training thread."""

    def __init__(self, batches: Sequence[Any], length: int, opening: Sequence[Any]) -> None:
        super().__init__(workers=1)
        self._batches, self._length, self._opening = batches, length, opening

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        after = index - len(self._opening)
        batch = self._opening[index] if after < 0 else self._batches[after % len(self._batches)]
        return batch if isinstance(batch, tuple | dict) else (batch,)


def _tfdata(batches: Sequence[Any], length: int, opening: Sequence[Any], *, of_fixed_size: bool) -> Any:
    import tensorflow as tf  # not installed for other backends

    def tensor_of(leaf: Any) -> Any:
        """Convert a sparse matrix of SciPy as Keras does; return any other leaf unchanged."""
        if not hasattr(leaf, "tocoo"):
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
    joined = functools.reduce(lambda done, more: done.concatenate(more), shown)  # its element_spec fits all of them
    if len(tensors) == 1 or any(leaf is None for leaf in tf.nest.flatten(tensors[0])):  # a generator cannot yield None
        ahead, cycle = joined.take(len(opening)), joined.skip(len(opening)).take(len(batches)).repeat()
        options = tf.data.Options()
        # the default optimizations copy the batches into a graph
        options.experimental_optimization.apply_default_optimizations = False
        return ahead.concatenate(cycle).take(length).with_options(options)
    spec = joined.element_spec
    del joined, shown  # a dataset would hold all batches on the device; a generator makes the tensors batch by batch
    return tf.data.Dataset.from_generator(
        lambda: itertools.chain(tensors[: len(opening)], itertools.cycle(tensors[len(opening) :])), output_signature=spec
    ).take(length)
