"""The shapes of batches and traced tensors for any number of samples (loads TensorFlow)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

_CUDNN_RNNS, _RESERVE_INDEX = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), 3
_RESERVED_OUTPUTS = {b"lstm": 6, b"gru": 5}  # times the layer's output: its gates and states (assumed, not measured)
_UNSIZED = ("resource", "variant", "string")


@dataclass(frozen=True)
class Scale:
    """Replaces the `traced` number of samples by `batch_size`, in every dimension that `traced` divides.

    `least_bytes` is the smallest buffer that the allocator counts.
    """

    traced: int
    batch_size: int
    least_bytes: int = 1

    def shape(self, tensor: Any) -> tuple[int, ...] | None:
        """Return the shape of a tensor or TensorSpec; None if it is not known before the step runs."""
        if not tensor.shape.is_fully_defined():
            return None
        return tuple(
            d // self.traced * self.batch_size if d and d % self.traced == 0 else d for d in tensor.shape.as_list()
        )

    def is_fixed(self, tensor: Any) -> bool:
        """Return whether the shape of a tensor is known and does not depend on the number of samples."""
        if tensor.dtype.name in _UNSIZED:
            return False
        return tensor.shape.is_fully_defined() and not any(d and d % self.traced == 0 for d in tensor.shape.as_list())

    def tensor_bytes(self, tensor: Any) -> int:
        """Return the bytes of a tensor; 0 for handles, lists, and shapes that are not known before the step runs."""
        shape = self.shape(tensor)
        if shape is None:
            return self._reserved_bytes(tensor)
        return 0 if tensor.dtype.name in _UNSIZED else math.prod(shape) * int(tensor.dtype.size)

    def _reserved_bytes(self, tensor: Any) -> int:
        """Return the bytes that cuDNN's recurrent layers keep for their gradient; 0 for other tensors of unknown shape."""
        op = getattr(tensor, "op", None)
        if op is None or op.type not in _CUDNN_RNNS or tensor.value_index != _RESERVE_INDEX:
            return 0
        return _RESERVED_OUTPUTS.get(op.get_attr("rnn_mode"), 1) * self.tensor_bytes(op.outputs[0])

    def counted_bytes(self, tensor: Any, entries: int = 1) -> int:
        """Return the bytes that the allocator counts of a tensor, or of a list of `entries` slices of it."""
        size = self.tensor_bytes(tensor)
        return size if size >= entries * self.least_bytes else 0


def batch_bytes(batch: Any, batch_size: int) -> tuple[int, ...]:
    """Return the bytes of each array of a batch."""
    specs = [leaf for leaf in keras.tree.flatten(batch_specs(batch, batch_size)) if isinstance(leaf, tf.TensorSpec)]
    return tuple(math.prod(leaf.shape.as_list()) * int(leaf.dtype.size) for leaf in specs)


def batch_specs(batch: Any, batch_size: int | None) -> Any:
    """Return the TensorSpecs of a batch; a batch size of None keeps the arrays' first axes."""
    return keras.tree.map_structure(lambda leaf: _spec(leaf, batch_size), batch)


def _spec(leaf: Any, batch_size: int | None) -> Any:
    if leaf is None:
        return None
    if hasattr(leaf, "nested_row_splits") or hasattr(leaf, "dense_shape"):
        return tf.type_spec_from_value(leaf)
    if hasattr(leaf, "tocoo"):
        return tf.SparseTensorSpec(leaf.shape, leaf.dtype)
    first = leaf.shape[:1] if batch_size is None or not leaf.shape else (batch_size,)
    return tf.TensorSpec((*first, *leaf.shape[1:]), leaf.dtype)
