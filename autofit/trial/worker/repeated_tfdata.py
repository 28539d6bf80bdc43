"""Batches over and over, as a `tf.data.Dataset` (loads TensorFlow).

`fit` hands the elements of a `tf.data.Dataset` to `train_step` as they are, so that a batch keeps its structure (Keras 3.15
`TFDatasetAdapter`, tf_keras 2.21 `DatasetAdapter`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autofit.workload.inputs.batch import mapped


def repeated_tfdata(
    batches: Sequence[Any], length: int, opening: Sequence[Any] = (), *, of_fixed_size: bool = False
) -> Any:
    """Return a dataset of `length` batches that repeats `batches`, after those of `opening`.

    Dimensions that differ between the batches are open. So is the first, as in a dataset that ends in a partial batch,
    unless the data has batches of a fixed size: a step that is traced for data of another form may fail.

    Args:
        batches: nests in the structure that Keras hands to `train_step`.
        length: batches in all.
        opening: batches that come first, once.
        of_fixed_size: whether the first dimension is fixed.
    """
    tensors = [_tensors(batch) for batch in (*opening, *batches)]
    first = tensors[0] if of_fixed_size else mapped(tensors[0], _first_row)
    shown = [tf.data.Dataset.from_tensors(batch) for batch in (*tensors, first)]
    joined = functools.reduce(lambda done, more: done.concatenate(more), shown)  # its element_spec suits all of them
    if len(tensors) == 1 or any(leaf is None for leaf in tf.nest.flatten(tensors[0])):  # a generator yields no None
        ahead, cycle = joined.take(len(opening)), joined.skip(len(opening)).take(len(batches)).repeat()
        return ahead.concatenate(cycle).take(length).with_options(_without_copies())
    spec = joined.element_spec
    del joined, shown  # a dataset would hold all batches on the device, a generator makes tensors of one at a time
    return tf.data.Dataset.from_generator(
        lambda: itertools.chain(tensors[: len(opening)], itertools.cycle(tensors[len(opening) :])), output_signature=spec
    ).take(length)


def _without_copies() -> Any:
    """Options without optimizations that copy the batches into a graph."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _first_row(leaf: Any) -> Any:
    """The first row of an array; a scalar is its own."""
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.slice(leaf, [0] * leaf.shape.rank, [1, *leaf.shape[1:]])
    return leaf[:1] if len(leaf.shape) > 0 else leaf


def _tensors(batch: Any) -> Any:
    """A batch with sparse matrices of SciPy as the tensors that Keras makes of them."""
    return mapped(batch, lambda leaf: _from_scipy(leaf) if hasattr(leaf, "tocoo") else leaf)


def _from_scipy(matrix: Any) -> Any:
    entries = matrix.tocoo()
    indices = tf.stack([tf.cast(entries.row, tf.int64), tf.cast(entries.col, tf.int64)], axis=1)
    return tf.sparse.reorder(tf.SparseTensor(indices, entries.data, entries.shape))
