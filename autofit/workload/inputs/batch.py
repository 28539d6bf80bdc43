"""Batches as Keras passes them to a train step: nests of arrays."""
# A nest consists of dicts, tuples and lists. Its leaves are arrays, ragged or sparse tensors, or
# None for a missing part, as in `(x, None)`. The kind of a leaf is recognised by its attributes, so
# that this module imports no library.

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leaves(nest: Any) -> list[Any]:
    """Return the arrays of a nest, without missing parts (None)."""
    if isinstance(nest, dict):
        nest = [*nest.values()]
    if not isinstance(nest, tuple | list):
        return [] if nest is None else [nest]
    arrays = []
    for part in nest:
        arrays += leaves(part)
    return arrays


def mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each array of a nest. Lists become tuples, as in Keras."""
    if isinstance(nest, dict):
        return {key: mapped(value, function) for key, value in nest.items()}
    if isinstance(nest, tuple | list):
        parts = [mapped(value, function) for value in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return None if nest is None else function(nest)


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array, a tensor, or a data frame."""
    return hasattr(leaf, "shape") and (
        hasattr(leaf, "dtype") or hasattr(leaf, "dtypes")
    )


def is_ragged(leaf: Any) -> bool:
    """Return whether a leaf is a ragged TensorFlow tensor."""
    return hasattr(leaf, "nested_row_splits")


def is_sparse(leaf: Any) -> bool:
    """Return whether a leaf is a sparse TensorFlow tensor or a sparse SciPy matrix."""
    return hasattr(leaf, "dense_shape") or hasattr(leaf, "tocsr")


def length_of(leaf: Any) -> int:
    """Return the number of entries along the first axis; 0 for a scalar."""
    if len(leaf.shape) == 0:
        return 0
    if leaf.shape[0] is None:
        return int(leaf.nrows()) if is_ragged(leaf) else int(leaf.dense_shape[0])
    return int(leaf.shape[0])


def components(leaf: Any) -> list[Any]:
    """Return the NumPy arrays that a leaf consists of: one for a dense array, several for ragged
    and sparse ones.
    """
    if is_ragged(leaf):
        return [
            leaf.flat_values.numpy(),
            *(splits.numpy() for splits in leaf.nested_row_splits),
        ]
    if hasattr(leaf, "dense_shape"):
        return [leaf.indices.numpy(), leaf.values.numpy()]
    if is_sparse(leaf):
        rows = leaf.tocsr()
        return [rows.data, rows.indices, rows.indptr]
    return [dense(leaf)]


def dense(leaf: Any) -> Any:
    """Return a tensor or data frame as a NumPy array; return arrays, and ragged and sparse leaves,
    unchanged.
    """
    if is_ragged(leaf) or is_sparse(leaf):
        return leaf
    convert = getattr(leaf, "numpy", None) or getattr(leaf, "to_numpy", None)
    return convert() if convert else leaf


def bytes_of(nest: Any) -> int:
    """Return the total bytes of the arrays of a nest."""
    return sum(int(part.nbytes) for leaf in leaves(nest) for part in components(leaf))


def samples_of(batch: Any, batch_size: int | None) -> int:
    """Return `batch_size` if the first axis of any array has that length, otherwise the length of
    the first array.
    """
    # the first axis does not always count samples: in a batch of graphs it counts nodes
    lengths = [length for length in map(length_of, leaves(batch)) if length]
    return batch_size if batch_size in lengths else lengths[0]
