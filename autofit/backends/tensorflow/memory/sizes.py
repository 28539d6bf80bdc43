"""The sizes of traced tensors, and of the tensor lists that loops fill, for any batch size (loads TensorFlow)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import while_v2

LOOPS = ("While", "StatelessWhile")
BORROWED = ("ReadVariableOp", "TensorListGetItem", "TensorListPopBack")
"""Operations whose output is the buffer of a variable or of a list's entry, not a new buffer."""

_CUDNN_RNNS, _RESERVE_INDEX = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), 3
_RESERVED_OUTPUTS = {b"lstm": 6, b"gru": 5}  # the layer's gates and states, in multiples of its output (assumed)
_UNSIZED = ("resource", "variant", "string")


@dataclass(frozen=True)
class Scale:
    """Scales tensors that were traced with `traced` samples to `batch_size` samples.

    A dimension that is a multiple of `traced` is a number of samples. `least_bytes` is the allocator's smallest buffer.
    """

    traced: int
    batch_size: int
    least_bytes: int = 1

    def shape(self, tensor: Any) -> tuple[int, ...] | None:
        """Return the scaled shape of a tensor; None if it is not known before the step runs."""
        if not tensor.shape.is_fully_defined():
            return None
        return tuple(d // self.traced * self.batch_size if self._counts_samples(d) else d for d in tensor.shape.as_list())

    def is_fixed(self, tensor: Any) -> bool:
        """Return whether the shape of a tensor is known and does not depend on the number of samples."""
        if tensor.dtype.name in _UNSIZED or not tensor.shape.is_fully_defined():
            return False
        return not any(map(self._counts_samples, tensor.shape.as_list()))

    def _counts_samples(self, dimension: int) -> bool:
        return dimension > 0 and dimension % self.traced == 0

    def tensor_bytes(self, tensor: Any) -> int:
        """Return the size of a tensor in bytes; 0 for a handle, a list, or a shape not known before the step runs."""
        shape, op = self.shape(tensor), tensor.op
        if shape is not None:
            return 0 if tensor.dtype.name in _UNSIZED else math.prod(shape) * int(tensor.dtype.size)
        if op.type in _CUDNN_RNNS and tensor.value_index == _RESERVE_INDEX:  # what the layer keeps for its gradient
            return _RESERVED_OUTPUTS.get(op.get_attr("rnn_mode"), 1) * self.tensor_bytes(op.outputs[0])
        return 0

    def list_bytes(self, listed: Any) -> int:
        """Return the bytes that a list of tensors holds after the operation that produces it; 0 for an empty list."""
        op = listed.op
        if op.type in LOOPS:
            return self._filled_bytes(listed, shared=False)
        if op.type == "TensorListFromTensor":
            return self._counted_bytes(op.inputs[0], op.inputs[0].shape[0] or 1)
        return self._whole_bytes(op.inputs[0]) if op.type == "ZerosLike" else 0

    def _counted_bytes(self, tensor: Any, entries: int = 1) -> int:
        """Return the bytes that the allocator counts for a tensor, or for a list of `entries` slices of the tensor."""
        size = self.tensor_bytes(tensor)
        return size if size >= entries * self.least_bytes else 0

    def _whole_bytes(self, listed: Any) -> int:
        """Return the bytes of a list's entries, including the entries that it shares with another list."""
        source = _behind(listed)
        if source.op.type not in LOOPS:
            return self.list_bytes(source)
        body, index = body_of(source.op), source.value_index
        if _behind(body.outputs[index]) is body.inputs[index]:
            return self._whole_bytes(source.op.inputs[index])
        return self._filled_bytes(source, shared=True)

    def _filled_bytes(self, listed: Any, *, shared: bool) -> int:
        """Return the bytes that the iterations of a loop add to a list of tensors that is one of its outputs.

        If `shared` is false, a tensor that several of the loop's lists hold counts only for the first of them, and a tensor
        that the previous iteration has put into a list does not count again.
        """
        body = body_of(listed.op)
        inputs = {id(t): index for index, t in enumerate(body.inputs)}
        counted: set[int] = set()
        size = 0
        for output in body.outputs[: listed.value_index + 1]:
            op, size = _behind(output).op, 0
            while op.type in ("TensorListPushBack", "TensorListSetItem"):
                element = _behind(op.inputs[1 if op.type == "TensorListPushBack" else 2])
                carried = inputs.get(id(element))
                if carried is not None:
                    element = _behind(body.outputs[carried])
                held_elsewhere = element.op.type in ("Placeholder", *BORROWED)
                if not held_elsewhere and (shared or id(element) not in counted):
                    counted.add(id(element))
                    size += self._counted_bytes(element)
                op = _behind(op.inputs[0]).op
        return size * iterations(listed.op)


def body_of(loop: Any) -> Any:
    """Return the graph of one iteration of a loop."""
    return while_v2._get_graph(loop, "body", "_body_graph")


def iterations(loop: Any) -> int:
    """Return the number of a loop's iterations: the length of its longest list of tensors; 1 if not known beforehand.

    The loop of a gradient has as many iterations as the loop that it differentiates.
    """
    count = 1
    for tensor in loop.inputs:
        source = _behind(tensor)
        if source.op.type in LOOPS:
            count = max(count, iterations(source.op))
        elif source.op.type == "TensorListReserve":
            count = max(count, int(tensor_util.constant_value(source.op.inputs[1]) or 1))
        elif source.op.type == "TensorListFromTensor":
            count = max(count, source.op.inputs[0].shape[0] or 1)
    return count


def _behind(tensor: Any) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
