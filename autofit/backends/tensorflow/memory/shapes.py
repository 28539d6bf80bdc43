"""Shapes of batches and of traced tensors for any number of samples (loads TensorFlow)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

_UNSIZED = ("resource", "variant", "string")


@dataclass(frozen=True)
class Scale:
    """Puts `batch_size` samples in the place of the `traced` ones: in every dimension that `traced` divides."""

    traced: int
    batch_size: int

    def shape(self, tensor: Any) -> tuple[int, ...] | None:
        """The dimensions of a tensor (or TensorSpec); None when they are not known before the step runs."""
        if not tensor.shape.is_fully_defined():
            return None
        return tuple(
            d // self.traced * self.batch_size if d and d % self.traced == 0 else d for d in tensor.shape.as_list()
        )

    def tensor_bytes(self, tensor: Any) -> int:
        """The bytes of a tensor; 0 for handles, lists, and what is not known before the step runs."""
        shape = self.shape(tensor)
        return 0 if shape is None or tensor.dtype.name in _UNSIZED else math.prod(shape) * int(tensor.dtype.size)


def batch_bytes(batch: Any, batch_size: int) -> tuple[int, ...]:
    """The bytes of each array of a batch of so many samples."""
    leaves = keras.tree.flatten(forms(batch, batch_size))
    return tuple(math.prod(leaf.shape.as_list()) * int(leaf.dtype.size) for leaf in leaves)


def forms(batch: Any, batch_size: int) -> Any:
    """What a batch of so many samples looks like, as TensorSpecs."""
    return keras.tree.map_structure(lambda leaf: tf.TensorSpec((batch_size, *leaf.shape[1:]), leaf.dtype), batch)
