"""The loops of a traced graph: their iterations, and the bytes of the tensor lists that they fill (loads TensorFlow)."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import cond_v2, while_v2

from autofit.backends.tensorflow.memory.shapes import Scale

LOOPS = ("While", "StatelessWhile")
BORROWED = ("ReadVariableOp", "TensorListGetItem", "TensorListPopBack")
"""Operations whose output is a buffer of a variable or list, not a new one."""


def body_of(loop: Any) -> Any:
    """Return the graph of one iteration."""
    return while_v2._get_graph(loop, "body", "_body_graph")


def branches_of(choice: Any) -> list[Any]:
    """Return the graphs of the branches of an If or a Case."""
    return list(cond_v2.get_func_graphs(choice))


def list_bytes(listed: Any, scale: Scale) -> int:
    """Return the bytes that a list of tensors holds after the operation that produces it; 0 for an empty list.

    Args:
        listed: a variant tensor.
        scale: the batch size to scale to.
    """
    op = listed.op
    if op.type in LOOPS:
        return _filled_bytes(op, scale, shared=False)[listed.value_index]
    if op.type == "TensorListFromTensor":
        return scale.counted_bytes(op.inputs[0], op.inputs[0].shape[0] or 1)
    return _whole_bytes(op.inputs[0], scale) if op.type == "ZerosLike" else 0


def _whole_bytes(listed: Any, scale: Scale) -> int:
    """Return the bytes of a list's entries, including those that it shares with another list."""
    source = _behind(listed)
    if source.op.type not in LOOPS:
        return list_bytes(source, scale)
    body, index = body_of(source.op), source.value_index
    if _behind(body.outputs[index]) is body.inputs[index]:
        return _whole_bytes(source.op.inputs[index], scale)
    return _filled_bytes(source.op, scale, shared=True)[index]


def _filled_bytes(loop: Any, scale: Scale, *, shared: bool) -> dict[int, int]:
    """Return the bytes that the iterations add to each output of a loop that is a list of tensors.

    A tensor that several lists hold, or that the previous iteration has put into a list, counts once. With `shared`, every
    list counts in full.
    """
    body = body_of(loop)
    inputs = {id(t): index for index, t in enumerate(body.inputs)}
    counted: set[int] = set()
    filled: dict[int, int] = {}
    for index, output in enumerate(body.outputs):
        op = _behind(output).op
        size = 0
        while op.type in ("TensorListPushBack", "TensorListSetItem"):
            element = _behind(op.inputs[1 if op.type == "TensorListPushBack" else 2])
            carried = inputs.get(id(element))
            if carried is not None:
                element = _behind(body.outputs[carried])
            held_elsewhere = element.op.type in ("Placeholder", *BORROWED)
            if not held_elsewhere and (shared or id(element) not in counted):
                counted.add(id(element))
                size += scale.counted_bytes(element)
            op = _behind(op.inputs[0]).op
        filled[index] = size * iterations(loop)
    return filled


def _behind(tensor: Any) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def iterations(loop: Any) -> int:
    """Return how often a loop runs: the length of its longest list of tensors, or of the loop whose gradient it is.

    Returns 1 if neither is known before the step runs.
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
