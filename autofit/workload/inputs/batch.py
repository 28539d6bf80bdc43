"""Batches as Keras hands them to a train step: nests of arrays of every kind that Keras takes.

A nest is made of dicts, tuples and lists. Its leaves are arrays, ragged or sparse tensors, or None, which stands for a part
that is missing: Keras takes `(x, None)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from autofit.errors import UnsupportedInputError, UsageError


def checked(batch: Any, source: str) -> Any:
    """Return a batch whose first array holds samples.

    Args:
        batch: what the user's data gave.
        source: what gave it, for the error.

    Raises:
        UnsupportedInputError: it is not a nest of arrays that hold samples.
    """
    arrays = leaves(batch)
    wrong = next((leaf for leaf in arrays if not is_array(leaf)), None)
    if wrong is not None:
        raise UnsupportedInputError(
            f"{source} gave a {type(wrong).__name__} in a batch; autofit takes what Keras takes: arrays or tensors, and "
            "tuples, lists and dicts of them"
        )
    if not any(length_of(leaf) for leaf in arrays):
        raise UnsupportedInputError(f"{source} gave a batch without a sample: no array of it has a first axis with entries")
    return batch


def first_of(batches: Iterator[Any], source: str) -> Any:
    """The first batch of an iterator.

    Raises:
        UsageError: there is none.
    """
    batch = next(batches, None)
    if batch is None:
        raise UsageError(f"{source} is empty: there is no batch to train on")
    return batch


def leaves(nest: Any) -> list[Any]:
    """The arrays of a nest; missing parts (None) are left out."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, tuple | list):
        return [leaf for part in nest for leaf in leaves(part)]
    return [] if nest is None else [nest]


def mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    """The nest with a function applied to each array, and tuples for lists, as Keras passes them on."""
    if isinstance(nest, dict):
        return {key: mapped(value, function) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(mapped(value, function) for value in nest))
    if isinstance(nest, tuple | list):
        return tuple(mapped(value, function) for value in nest)
    return None if nest is None else function(nest)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a tensor, or a data frame."""
    return hasattr(leaf, "shape") and (hasattr(leaf, "dtype") or hasattr(leaf, "dtypes"))


def is_ragged(leaf: Any) -> bool:
    """Whether it is a ragged tensor of TensorFlow."""
    return hasattr(leaf, "nested_row_splits")


def is_sparse(leaf: Any) -> bool:
    """Whether it is a sparse tensor of TensorFlow or a sparse matrix of SciPy."""
    return hasattr(leaf, "dense_shape") or hasattr(leaf, "tocsr")


def length_of(leaf: Any) -> int:
    """Entries along the first axis; 0 for a scalar."""
    shape = leaf.shape
    if len(shape) == 0:
        return 0
    if shape[0] is None:
        return int(leaf.nrows()) if is_ragged(leaf) else int(leaf.dense_shape[0])
    return int(shape[0])


def components(leaf: Any) -> list[Any]:
    """The NumPy arrays that hold the numbers of a leaf: one for a dense array."""
    if is_ragged(leaf):
        return [leaf.flat_values.numpy(), *(splits.numpy() for splits in leaf.nested_row_splits)]
    if hasattr(leaf, "dense_shape"):
        return [leaf.indices.numpy(), leaf.values.numpy()]
    if is_sparse(leaf):
        rows = leaf.tocsr()
        return [rows.data, rows.indices, rows.indptr]
    return [dense(leaf)]


def dense(leaf: Any) -> Any:
    """A tensor or data frame as a NumPy array; ragged and sparse leaves, and arrays, are returned as they are."""
    if is_ragged(leaf) or is_sparse(leaf):
        return leaf
    if hasattr(leaf, "numpy"):
        return leaf.numpy()
    return leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf


def bytes_of(nest: Any) -> int:
    """Bytes of all arrays of a nest."""
    return sum(int(part.nbytes) for leaf in leaves(nest) for part in components(leaf))


def samples_of(batch: Any, batch_size: int | None) -> int:
    """Samples in a batch: `batch_size` if the first axis of an array has so many entries, else the first array's entries.

    The first axis of some data does not count samples: that of a batch of graphs counts nodes.
    """
    lengths = [length for length in map(length_of, leaves(batch)) if length]
    return batch_size if batch_size in lengths else lengths[0]
