"""Find the peak memory of a traced train step: which tensors are alive at the same time (loads TensorFlow, runs nothing).

    graph ─> operations: calls inlined, a loop is one ─> executor: threads and a stack of what is ready ─> highest sum of
                                                                                                          live buffers

A line through the peaks of two real steps cannot replace it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import cond_v2, while_v2

from autofit.backends.tensorflow import execution
from autofit.backends.tensorflow.execution import Buffer, Operation

# Steps on small batches, as on torch, cannot replace this: TensorFlow reports only the highest peak of a step, and as the
# batch grows, the peak moves from one operation to another. A line through the peaks of two real trials is off by 16 % in
# the median and 79 % at the 90th percentile; this walk by 5 and 17 % (measured: tests/benchmarks/memory-parts.txt).

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}  # the index of the tensor that is put into the list
_BORROWED = ("Const", "Placeholder", "ReadVariableOp", "TensorListGetItem", "TensorListPopBack")  # held by something else
_UNSIZED = ("resource", "variant", "string")
_RESERVE_INDEX, _RESERVED_OUTPUTS = 3, {b"lstm": 6, b"gru": 5}  # what cuDNN keeps for the gradient: its outputs (assumed)
_OVERHEAD_SECONDS = 5e-6  # rough rates of two cores, which only decide which operations overlap (assumed)
_BYTES_PER_SECOND, _MULTIPLICATIONS_PER_SECOND = 5e9, 1e10
_ALIGNMENT_BYTES = 256  # bfc_allocator.cc

_Made = tuple[Buffer | None, Collection[int]]  # the buffer of a tensor and the operations that make it
_OUTSIDE: _Made = (None, ())  # held by something else


@dataclass(frozen=True)
class Setting:
    """How a step runs: `threads` operations at a time, by oneDNN's kernels if `onednn`, on a CPU if `on_cpu`."""

    traced: int  # samples in the traced step: a dimension that is a multiple of them is scaled to `batch_size`
    batch_size: int
    threads: int
    on_cpu: bool = True
    onednn: bool = False
    is_eager: bool = False  # its operations do not overwrite their inputs, because the caller holds these
    least_bytes: int = 1  # of the buffers that the allocator counts
    optimizer_names: Collection[str] = ()

    def counted(self, size_bytes: int) -> int:
        return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES if size_bytes >= self.least_bytes else 0

    def shape(self, tensor: Any) -> tuple[int, ...] | None:
        """Return the scaled shape of a tensor; None if it is not known before the step runs."""
        if not tensor.shape.is_fully_defined():
            return None
        return tuple(d if d % self.traced else d // self.traced * self.batch_size for d in tensor.shape.as_list())

    def tensor_bytes(self, tensor: Any) -> int:
        """Return the size of a tensor in bytes; 0 for a handle, a list, or a shape not known before the step runs."""
        shape, op = self.shape(tensor), tensor.op
        if shape is not None:
            return 0 if tensor.dtype.name in _UNSIZED else math.prod(shape) * int(tensor.dtype.size)
        if op.type.startswith("CudnnRNN") and tensor.value_index == _RESERVE_INDEX:
            return _RESERVED_OUTPUTS.get(op.get_attr("rnn_mode"), 1) * self.tensor_bytes(op.outputs[0])
        return 0


def peak(graph: Any, setting: Setting) -> Mapping[str, int]:
    """Return the bytes of each part of what a step holds at its peak, without variables and input."""
    program = _Program(setting)
    program.read(graph)
    return program.peak(graph.outputs)


@dataclass(eq=False)
class _Program:
    """The operations of a graph, and of the graphs that it calls."""

    setting: Setting
    operations: list[Operation] = field(default_factory=list)
    _tensors: dict[Any, _Made] = field(default_factory=dict)
    _numbers: dict[Any, Collection[int]] = field(default_factory=dict)  # by operation of a graph
    _lists: dict[Any, int] = field(default_factory=dict)  # by list of tensors that a loop fills: bytes

    def read(self, graph: Any, prefix: str = "", given: Sequence[_Made] = ()) -> list[_Made]:
        """Append the operations of a graph, and return what is known of its results; `given` is that of its inputs."""
        self._tensors.update((tensor.ref(), made) for tensor, made in zip(graph.inputs, given, strict=False))
        for op in _needed(graph):
            if op.type in _CALLS:
                body, first = op.graph._get_function(op.get_attr("f").name).graph, len(self.operations)
                results = self.read(body, f"{prefix}{op.name}/", self._made(op.inputs))
                self._numbers[op] = range(first, len(self.operations))
                self._tensors.update((t.ref(), made) for t, made in zip(op.outputs, results, strict=True))
            elif op.type not in ("Const", "Placeholder"):
                self._append(op, prefix, self._made(op.inputs))
        return self._made(graph.outputs)

    def _made(self, tensors: Sequence[Any]) -> list[_Made]:
        return [self._tensors.get(t.ref(), _OUTSIDE) for t in tensors]

    def peak(self, results: Sequence[Any]) -> Mapping[str, int]:
        kept = [buffer for buffer, _ in self._made(results) if buffer is not None]
        return execution.peak(self.operations, kept, self.setting.threads)

    def _append(self, op: Any, prefix: str, given: Sequence[_Made]) -> None:
        number, makes = len(self.operations), []
        for tensor in op.outputs:
            buffer = None
            if op.type in execution.VIEWS and given:
                buffer, _ = given[tensor.value_index if len(given) == len(op.outputs) else 0]
            elif op.type not in _BORROWED:
                size = self._list_bytes(tensor) if tensor.dtype == tf.variant else self.setting.tensor_bytes(tensor)
                if counted := self.setting.counted(size):
                    buffer = Buffer(counted, self._part(prefix + op.name))
                    makes.append(buffer)
            self._tensors[tensor.ref()] = buffer, (number,)
        before = [*(numbers for _, numbers in given), *(self._numbers.get(c, ()) for c in op.control_inputs)]
        after = {number for numbers in before for number in numbers}
        # the kernels that only need a shape do not keep the tensor alive
        reads = [] if op.type in execution.OF_SHAPES else [buffer for buffer, _ in given if buffer is not None]
        reuses = reads if op.type in execution.OVERWRITES and not self.setting.is_eager else []
        self._numbers[op] = (number,)
        self.operations.append(Operation(reads, makes, after, reuses, self._workspace(op), self._seconds(op)))

    def _part(self, name: str) -> str:
        if any(f"{optimizer}/" in name for optimizer in self.setting.optimizer_names):
            return "temporaries"
        return "gradients" if "gradient_tape/" in name or "gradients/" in name else "activations"

    def _workspace(self, op: Any) -> int:
        if op.type in (*_LOOPS, *_BRANCHES):
            bodies = [_body_of(op)] if op.type in _LOOPS else cond_v2.get_func_graphs(op)
            return max(sum(peak(body, self.setting).values()) for body in bodies)
        shapes = [shape for t in (*op.inputs, *op.outputs) if (shape := self.setting.shape(t)) is not None]
        if not self.setting.on_cpu or not op.outputs or len(shapes) < len(op.inputs) + len(op.outputs):
            return 0
        count, item_bytes = len(op.inputs), op.outputs[0].dtype.size
        onednn = self.setting.onednn and op.outputs[0].dtype.name in execution.ONEDNN_TYPES
        sizes = execution.workspace_bytes(op.type, shapes[:count], shapes[count:], item_bytes, onednn=onednn)
        return sum(map(self.setting.counted, sizes))

    def _list_bytes(self, listed: Any) -> int:
        """Return the bytes that a list of tensors holds after the operation that produces it."""
        op = listed.op
        if op.type == "TensorListFromTensor":
            entries = op.inputs[0].shape[0] or 1
            return self.setting.counted(self.setting.tensor_bytes(op.inputs[0]) // entries) * entries
        if op.type in _LOOPS and listed.ref() not in self._lists:
            self._lists.update(self._filled(op))
        return self._lists.get(listed.ref(), 0)

    def _filled(self, loop: Any) -> dict[Any, int]:
        """Return the bytes that a loop's iterations add to each of its lists; a tensor in several counts for the first."""
        body, counted, filled = _body_of(loop), set(), {}
        for output, result in zip(loop.outputs, body.outputs, strict=True):
            op, size = _behind(result).op, 0
            while op.type in _PUSHES:
                element = _behind(op.inputs[_PUSHES[op.type]])
                for given, following in zip(body.inputs, body.outputs, strict=True):
                    if given is element:  # the state after the iteration before
                        element = _behind(following)
                if element.op.type not in _BORROWED and element.ref() not in counted:
                    counted.add(element.ref())
                    size += self.setting.counted(self.setting.tensor_bytes(element))
                op = _behind(op.inputs[0]).op
            filled[output.ref()] = size * _iterations(loop)
        return filled

    def _seconds(self, op: Any) -> float:
        """Return the rough duration of an operation, in seconds: of its bytes, and of its multiplications."""
        tensors, multiplied = (*op.inputs, *op.outputs), 0.0
        shapes = [self.setting.shape(t) or () for t in tensors]
        images = [shape for shape in shapes if len(shape) > 3]
        if op.type.startswith(("Conv2D", "Conv3D")) and images:
            multiplied = max(math.prod(shape[:-1]) for shape in images) * min(map(math.prod, images))
        elif "MatMul" in op.type:
            multiplied = math.sqrt(math.prod(map(math.prod, shapes[:3])))
        moved = sum(map(self.setting.tensor_bytes, tensors))
        return _OVERHEAD_SECONDS + moved / _BYTES_PER_SECOND + multiplied / _MULTIPLICATIONS_PER_SECOND


def _body_of(loop: Any) -> Any:
    return while_v2._get_graph(loop, "body", "_body_graph")


def _iterations(loop: Any) -> int:
    """Return the number of a loop's iterations: the length of its longest list of tensors; 1 if not known beforehand."""
    count = 1
    for tensor in loop.inputs:
        op = _behind(tensor).op
        if op.type in _LOOPS:  # that of a gradient has as many iterations as the loop that it differentiates
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


def _needed(graph: Any) -> list[Any]:
    """Return the operations that a result or a side effect depends on, in topological order; the others are pruned."""
    needed: dict[Any, set[Any]] = {}
    wanted = [*(t.op for t in graph.outputs), *graph.control_outputs]
    while wanted:
        op = wanted.pop()
        if op not in needed:
            needed[op] = {*(t.op for t in op.inputs), *op.control_inputs}
            wanted += needed[op]
    # the graph's own order is not topological: it may list the inputs of a loop after the loop
    index = {op: number for number, op in enumerate(graph.get_operations())}
    return list(TopologicalSorter({op: needed[op] for op in sorted(needed, key=index.__getitem__)}).static_order())
