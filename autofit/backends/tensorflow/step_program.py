"""Find the peak memory of a traced train step: which tensors are alive at the same time (loads
TensorFlow, runs nothing).

graph ─> operations: calls inlined, a loop is one ─> executor ─> highest sum of live buffers
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import cond_v2, while_v2

from autofit.backends.tensorflow import execution
from autofit.backends.tensorflow.execution import Buffer, Operation

# Steps on small batches, as on torch, cannot replace this: TensorFlow reports only the highest peak
# of a step, and as the batch grows, the peak moves from one operation to another. A line through
# the peaks of two real trials is off by 16 % in the median and 79 % at the 90th percentile; this
# walk by 5 and 17 % (measured: tests/benchmarks/memory-parts.txt).

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
# the index of the tensor that is put into the list
_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}
# held by something else
_BORROWED = (
    "Const",
    "Placeholder",
    "ReadVariableOp",
    "TensorListGetItem",
    "TensorListPopBack",
)
_UNSIZED = ("resource", "variant", "string")
# what cuDNN keeps for the gradient: its outputs (assumed)
_RESERVE_INDEX = 3
_RESERVED_OUTPUTS = {b"lstm": 6, b"gru": 5}
# rough rates of two cores, which only decide which operations overlap (assumed)
_OVERHEAD_SECONDS = 5e-6
_BYTES_PER_SECOND = 5e9
_MULTIPLICATIONS_PER_SECOND = 1e10
_ALIGNMENT_BYTES = 256  # bfc_allocator.cc

# the buffer of a tensor and the operations that make it
_Made = tuple[Buffer | None, Collection[int]]
_OUTSIDE: _Made = (None, ())  # held by something else


@dataclass(eq=False)
class StepProgram:
    """How a step runs: `threads` operations at a time, by oneDNN's kernels if `onednn`, on a CPU if
    `on_cpu`.
    """

    # samples in the traced step: a dimension that is a multiple of them is scaled to `batch_size`
    traced: int
    batch_size: int
    threads: int
    on_cpu: bool = True
    onednn: bool = False
    # its operations do not overwrite their inputs, because the caller holds these
    is_eager: bool = False
    optimizer_names: Collection[str] = ()
    _operations: list[Operation] = field(default_factory=list, init=False)
    _tensors: dict[Any, _Made] = field(default_factory=dict, init=False)
    # by operation of a graph
    _numbers: dict[Any, Collection[int]] = field(default_factory=dict, init=False)

    def peak(self, graph: Any) -> Counter[str]:
        """Return the bytes of each part of what a graph holds at its peak, without variables and
        input.
        """
        program = replace(self)  # whose operations are those of this graph alone
        results = [buffer for buffer, _ in program._read(graph) if buffer is not None]
        return execution.peak(program._operations, results, self.threads)

    def _read(
        self, graph: Any, prefix: str = "", given: Sequence[_Made] = ()
    ) -> list[_Made]:
        """Append the operations of a graph, and return what is known of its results; `given` is
        that of its inputs.
        """
        self._tensors.update(
            (tensor.ref(), made)
            for tensor, made in zip(graph.inputs, given, strict=False)
        )
        for op in _needed(graph):
            if op.type in _CALLS:
                body = op.graph._get_function(op.get_attr("f").name).graph
                first = len(self._operations)
                results = self._read(body, f"{prefix}{op.name}/", self._made(op.inputs))
                self._numbers[op] = range(first, len(self._operations))
                self._tensors.update(
                    (t.ref(), made) for t, made in zip(op.outputs, results, strict=True)
                )
            elif op.type not in ("Const", "Placeholder"):
                self._append(op, self._part(prefix + op.name), self._made(op.inputs))
        return self._made(graph.outputs)

    def _made(self, tensors: Sequence[Any]) -> list[_Made]:
        return [self._tensors.get(t.ref(), _OUTSIDE) for t in tensors]

    def _append(self, op: Any, part: str, given: Sequence[_Made]) -> None:
        self._numbers[op] = (len(self._operations),)
        lists = Buffer(self._list_bytes(op), part)  # all that a loop fills
        makes = [lists, Buffer(self._workspace_bytes(op), "temporaries")]
        for index, tensor in enumerate(op.outputs):
            buffer = lists if tensor.dtype == tf.variant else None
            if op.type in execution.VIEWS and given:
                buffer, _ = given[index if len(given) == len(op.outputs) else 0]
            elif op.type not in _BORROWED and (size := _aligned(self._bytes(tensor))):
                makes.append(buffer := Buffer(size, part))
            self._tensors[tensor.ref()] = buffer, self._numbers[op]
        # the kernels that only need a shape do not keep the tensor alive
        reads = (
            []
            if op.type in execution.OF_SHAPES
            else [buffer for buffer, _ in given if buffer is not None]
        )
        before = [
            *(numbers for _, numbers in given),
            *(self._numbers.get(c, ()) for c in op.control_inputs),
        ]
        after = {number for numbers in before for number in numbers}
        overwrites = op.type in execution.OVERWRITES and not self.is_eager
        makes = [buffer for buffer in makes if buffer.size_bytes]
        self._operations.append(
            Operation(reads, makes, after, overwrites, self._seconds(op))
        )

    def _part(self, name: str) -> str:
        if any(f"{optimizer}/" in name for optimizer in self.optimizer_names):
            return "temporaries"
        return (
            "gradients"
            if "gradient_tape/" in name or "gradients/" in name
            else "activations"
        )

    def _shape(self, tensor: Any) -> tuple[int, ...] | None:
        """Return the scaled shape of a tensor; None if it is not known before the step runs."""
        if not tensor.shape.is_fully_defined():
            return None
        return tuple(
            d if d % self.traced else d // self.traced * self.batch_size
            for d in tensor.shape.as_list()
        )

    def _bytes(self, tensor: Any) -> int:
        """Return the size of a tensor in bytes; 0 for a handle, a list, or a shape not known before
        the step runs.
        """
        shape = self._shape(tensor)
        op = tensor.op
        if shape is not None:
            return (
                0
                if tensor.dtype.name in _UNSIZED
                else math.prod(shape) * int(tensor.dtype.size)
            )
        if op.type.startswith("CudnnRNN") and tensor.value_index == _RESERVE_INDEX:
            return _RESERVED_OUTPUTS.get(op.get_attr("rnn_mode"), 1) * self._bytes(
                op.outputs[0]
            )
        return 0

    def _list_bytes(self, op: Any) -> int:
        """Return the bytes that an operation adds to lists; a tensor that a loop puts into several
        counts once.
        """
        if op.type == "TensorListFromTensor":
            return _aligned(self._bytes(op.inputs[0]))
        if op.type not in _LOOPS:
            return 0
        body = _body_of(op)
        pushed = {}
        # by the state of an iteration, that of the next one
        following = dict(zip((t.ref() for t in body.inputs), body.outputs, strict=True))
        for push in (each for each in body.get_operations() if each.type in _PUSHES):
            element = _behind(push.inputs[_PUSHES[push.type]])
            element = _behind(following.get(element.ref(), element))
            if element.op.type not in _BORROWED:
                pushed[element.ref()] = _aligned(self._bytes(element))
        return sum(pushed.values()) * _iterations(op)

    def _workspace_bytes(self, op: Any) -> int:
        if op.type in (*_LOOPS, *_BRANCHES):
            bodies = (
                [_body_of(op)] if op.type in _LOOPS else cond_v2.get_func_graphs(op)
            )
            return max(self.peak(body).total() for body in bodies)
        shapes = [
            shape
            for t in (*op.inputs, *op.outputs)
            if (shape := self._shape(t)) is not None
        ]
        if (
            not self.on_cpu
            or not op.outputs
            or len(shapes) < len(op.inputs) + len(op.outputs)
        ):
            return 0
        count = len(op.inputs)
        dtype = op.outputs[0].dtype
        onednn = self.onednn and dtype.name in execution.ONEDNN_TYPES
        sizes = execution.workspace_bytes(
            op.type, shapes[:count], shapes[count:], dtype.size, onednn=onednn
        )
        return sum(map(_aligned, sizes))

    def _seconds(self, op: Any) -> float:
        """Return the rough duration of an operation, in seconds: of its bytes, and of its
        multiplications.
        """
        tensors = (*op.inputs, *op.outputs)
        multiplied = 0.0
        shapes = [self._shape(t) or () for t in tensors]
        images = [shape for shape in shapes if len(shape) > 3]
        if op.type.startswith(("Conv2D", "Conv3D")) and images:
            multiplied = max(math.prod(shape[:-1]) for shape in images) * min(
                map(math.prod, images)
            )
        elif "MatMul" in op.type:
            multiplied = math.sqrt(math.prod(map(math.prod, shapes[:3])))
        moved = sum(map(self._bytes, tensors))
        return (
            _OVERHEAD_SECONDS
            + moved / _BYTES_PER_SECOND
            + multiplied / _MULTIPLICATIONS_PER_SECOND
        )


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _body_of(loop: Any) -> Any:
    return while_v2._get_graph(loop, "body", "_body_graph")


def _iterations(loop: Any) -> int:
    """Return the number of a loop's iterations: the length of its longest list of tensors; 1 if not
    known beforehand.
    """
    count = 1
    for op in (_behind(tensor).op for tensor in loop.inputs):
        # that of a gradient has as many iterations as the loop that it differentiates
        if op.type in _LOOPS:
            count = max(count, _iterations(op))
        elif op.type == "TensorListReserve":
            count = max(count, int(tensor_util.constant_value(op.inputs[1]) or 1))
        elif op.type == "TensorListFromTensor":
            count = max(count, op.inputs[0].shape[0] or 1)
    return count


def _behind(tensor: Any) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _needed(graph: Any) -> Iterable[Any]:
    """Return the operations that a result or a side effect depends on, in topological order; the
    others are pruned.
    """
    needed = {}
    wanted = [*(t.op for t in graph.outputs), *graph.control_outputs]
    for op in wanted:  # which grows
        if op not in needed:
            needed[op] = [*(t.op for t in op.inputs), *op.control_inputs]
            wanted += needed[op]
    # the graph's own order is not topological: it may list the inputs of a loop after the loop
    return TopologicalSorter(
        {op: needed[op] for op in graph.get_operations() if op in needed}
    ).static_order()
