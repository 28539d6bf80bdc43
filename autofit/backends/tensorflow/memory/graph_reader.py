"""Convert the graph of a traced train step into a program of operations (loads TensorFlow, runs no operation)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import cond_v2

from autofit.backends.tensorflow.memory import kernels, sizes
from autofit.backends.tensorflow.memory.liveness import OUTSIDE, Operation, Program, Value, peak

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_OVERHEAD_SECONDS = 5e-6  # rough rates of two cores, which only decide which operations overlap (assumed)
_BYTES_PER_SECOND, _OPERATIONS_PER_SECOND = 5e9, 2e10
_UPDATE_PASSES = 3  # an update reads the gradient, and reads and writes the variable
_MOST_FOLDED_BYTES = 10 * 2**20  # constant_folding.cc: larger results are computed in each step
_ITERATIONS_AHEAD = 8  # loop iterations that may overlap; TensorFlow allows 32, but the walk takes longer with each


@dataclass(eq=False)
class GraphReader:
    """Converts graphs. Function calls are inlined; a loop or branch becomes one operation, with its peak as workspace.

    Operations of an eager step do not overwrite their inputs, because the caller holds these.
    """

    optimizer_names: Collection[str]
    scale: sizes.Scale
    on_cpu: bool
    onednn: bool
    is_eager: bool

    def __post_init__(self) -> None:
        self.constants: list[int] = []  # sizes of the constants that operations read, in bytes
        self._values: list[Value] = []
        self._operations: list[Operation] = []
        self._index: dict[int, int] = {}  # by the id of a tensor: its value
        self._folded: dict[int, int] = {}  # by the id of a constant tensor: its bytes, 0 once counted
        self._variable: dict[int, int] = {}  # by the id of a handle tensor: the value of its variable
        self._number: dict[int, tuple[int, ...]] = {}  # by the id of a graph's operation: its operations here
        self._keep: list[Any] = []  # keeps the objects alive whose ids are used as keys

    def program(self, results: Sequence[Any], held_bytes: Mapping[str, Sequence[int]]) -> Program:
        """Return the operations read so far as a program that returns the tensors `results`."""
        return Program(self._values, self._operations, frozenset(self._inside(results)), held_bytes)

    def _inside(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        return tuple(v for v in (self._index[id(t)] for t in tensors) if v != OUTSIDE)

    def hold(self, size_bytes: int, part: str, handle: Any) -> None:
        """Add a variable; `handle` is the tensor that represents it in the graph, None if the graph does not use it."""
        variable = self._add(Value(size_bytes, part, is_variable=True))
        if handle is not None:
            self._variable[id(handle)] = variable

    def read(self, graph: Any, prefix: str = "", given: Sequence[int] = ()) -> None:
        """Append the graph's operations; `given` lists the values of its inputs, if they are known."""
        self._keep.append(graph)
        self._index.update((id(tensor), value) for tensor, value in zip(graph.inputs, given, strict=False))
        for op in _in_order(graph):
            after = tuple(n for control in op.control_inputs for n in self._number.get(id(control), ()))
            if op.type in _CALLS:
                self._number[id(op)] = self._call(op, prefix)
                continue
            if op.type == "IdentityN":  # TensorFlow splits it, so that no output waits for the other inputs
                for outer, inner in zip(op.outputs, op.inputs, strict=True):
                    self._stand_for(outer, inner)
                continue
            if self._folds(op):
                self._folded.update((id(t), self.scale.tensor_bytes(t)) for t in op.outputs)
                self._index.update((id(t), OUTSIDE) for t in op.outputs)
                continue
            for tensor in op.inputs:  # each constant that an operation reads is kept once
                if self._folded.get(id(tensor)):
                    self.constants.append(self._folded[id(tensor)])
                    self._folded[id(tensor)] = 0
            for tensor in op.outputs:
                if op.type != "Placeholder" or id(tensor) not in self._index:
                    self._index[id(tensor)] = self._value(op, tensor, prefix)
            if op.type in ("Placeholder", "NoOp") and not op.control_inputs:
                continue
            self._number[id(op)] = (len(self._operations),)
            self._operations.append(
                Operation(
                    name=prefix + op.name,
                    inputs=self._inside(op.inputs),
                    outputs=self._inside(op.outputs),
                    after=after,
                    workspace_bytes=self._workspace(op),
                    may_overwrite=self._may_overwrite(op),
                    overwriting=kernels.OVERWRITING_OUTPUTS.get(op.type, 0),
                    seconds=self._seconds(op),
                    updates=self._variable.get(id(op.inputs[0]), OUTSIDE) if op.type in kernels.UPDATES else OUTSIDE,
                    assigned=self._index[id(op.inputs[1])] if op.type == "AssignVariableOp" else OUTSIDE,
                )
            )

    def _call(self, op: Any, prefix: str) -> tuple[int, ...]:
        body = op.graph._get_function(op.get_attr("f").name).graph
        for inner, outer in zip(body.inputs, op.inputs, strict=True):
            self._stand_for(inner, outer)
        first = len(self._operations)
        self.read(body, f"{prefix}{op.name}/")
        for outer, inner in zip(op.outputs, body.outputs, strict=True):
            self._stand_for(outer, inner)
        return tuple(range(first, len(self._operations)))

    def _stand_for(self, tensor: Any, other: Any) -> None:
        """Record for a tensor everything that is recorded for `other`."""
        for by_tensor in (self._index, self._variable, self._folded):
            by_tensor.pop(id(tensor), None)
            if id(other) in by_tensor:
                by_tensor[id(tensor)] = by_tensor[id(other)]

    def _folds(self, op: Any) -> bool:
        """Return whether TensorFlow computes an operation once, when it compiles the step, and keeps the results."""
        if op.type == "Const":
            return True
        return (
            bool(op.inputs)
            and not op.op_def.is_stateful
            and op.type not in (*sizes.LOOPS, *_BRANCHES)
            and (op.type in kernels.OF_SHAPES or all(id(t) in self._folded for t in op.inputs))
            and all(self.scale.is_fixed(t) for t in (*op.inputs, *op.outputs))
            and all(self.scale.tensor_bytes(t) <= _MOST_FOLDED_BYTES for t in op.outputs)
            and not any(reader.type in sizes.LOOPS for t in op.outputs for reader in t.consumers())
        )

    def _value(self, op: Any, tensor: Any, prefix: str) -> int:
        """Add a value for a tensor and return its index; return `OUTSIDE` if the step does not hold the tensor."""
        alias, size = None, self.scale.tensor_bytes(tensor)
        if op.type == "ReadVariableOp" and id(op.inputs[0]) in self._variable:
            return self._add(Value(size, "weights", self._variable[id(op.inputs[0])]))
        if op.type in ("Placeholder", *sizes.BORROWED) or (op.type in kernels.VIEWS and not op.inputs):
            return OUTSIDE
        if op.type in kernels.VIEWS:
            index = tensor.value_index if len(op.inputs) == len(op.outputs) else 0
            alias = self._index[id(op.inputs[index])]
            if alias == OUTSIDE:
                return OUTSIDE
        elif tensor.dtype == tf.variant:
            size = self.scale.list_bytes(tensor)
        return self._add(Value(size, self._part(prefix + op.name), alias))

    def _add(self, value: Value) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _part(self, name: str) -> str:
        if any(f"{optimizer}/" in name for optimizer in self.optimizer_names):
            return "temporaries"
        return "gradients" if "gradient_tape/" in name or "gradients/" in name else "activations"

    def _workspace(self, op: Any) -> tuple[int, ...]:
        if op.type in sizes.LOOPS:
            return (self._body_bytes(sizes.body_of(op), min(sizes.iterations(op), _ITERATIONS_AHEAD)),)
        if op.type in _BRANCHES:
            return (max(self._body_bytes(branch) for branch in cond_v2.get_func_graphs(op)),)
        shapes = [shape for t in (*op.inputs, *op.outputs) if (shape := self.scale.shape(t)) is not None]
        if not self.on_cpu or not op.outputs or len(shapes) < len(op.inputs) + len(op.outputs):
            return ()
        dtype, count = op.outputs[0].dtype, len(op.inputs)
        onednn = kernels.onednn_takes(dtype.name, kernels.processor_flags(), onednn=self.onednn)
        equation = op.get_attr("equation").decode() if op.type == "Einsum" else ""
        return kernels.workspace_bytes(
            op.type, shapes[:count], shapes[count:], dtype.size, onednn=onednn, equation=equation
        )

    def _body_bytes(self, body: Any, iterations: int = 1) -> int:
        """Return the peak of a loop's iterations, in bytes. Iterations that do not need each other's results overlap."""
        reader = replace(self)
        carried = [OUTSIDE for _ in body.inputs]
        for _ in range(iterations):
            reader.read(body, given=carried)
            carried = [reader._index[id(t)] for t in body.outputs]
        program = reader.program(body.outputs, held_bytes={})
        return sum(peak(program, least_bytes=self.scale.least_bytes, runs=1, steps=1).values())

    def _may_overwrite(self, op: Any) -> tuple[int, ...]:
        if self.is_eager or op.type not in {*kernels.OVERWRITES, *kernels.OVERWRITING_OUTPUTS} or not op.outputs:
            return ()
        output = op.outputs[kernels.OVERWRITING_OUTPUTS.get(op.type, 0)]
        size = self.scale.tensor_bytes(output)
        same = [t for t in op.inputs if t.dtype.size == output.dtype.size and self.scale.tensor_bytes(t) == size]
        return self._inside(same)

    def _seconds(self, op: Any) -> float:
        """Return the rough duration of an operation on two cores, in seconds."""
        moved = sum(self.scale.tensor_bytes(t) for t in (*op.inputs, *op.outputs))
        if op.type in kernels.UPDATES:
            moved *= _UPDATE_PASSES
        return _OVERHEAD_SECONDS + moved / _BYTES_PER_SECOND + self._arithmetic(op) / _OPERATIONS_PER_SECOND

    def _arithmetic(self, op: Any) -> float:
        """Count the floating-point operations of a convolution or matrix product; 0 for kernels that only move bytes."""
        shapes = [self.scale.shape(t) or () for t in (*op.inputs, *op.outputs)]
        if op.type.startswith(("Conv2D", "Conv3D")):
            images = [shape for shape in shapes if len(shape) > 3]
            return 2.0 * max(math.prod(s[:-1]) for s in images) * min(math.prod(s) for s in images) if images else 0.0
        if "MatMul" in op.type and len(shapes) > 2:
            return 2.0 * math.sqrt(math.prod(math.prod(shape) for shape in shapes[:3]))
        return 0.0


def _in_order(graph: Any) -> list[Any]:
    """Return the operations that a result or a side effect depends on, in topological order; TensorFlow prunes the others.

    The graph's own order is not topological: it may list the inputs of a loop after the loop.
    """
    needed: dict[Any, set[Any]] = {}
    wanted = [*(t.op for t in graph.outputs), *graph.control_outputs]
    while wanted:
        op = wanted.pop()
        if op not in needed:
            needed[op] = {*(t.op for t in op.inputs), *op.control_inputs}
            wanted += needed[op]
    index = {op: number for number, op in enumerate(graph.get_operations())}
    ordered = {op: needed[op] for op in sorted(needed, key=index.__getitem__)}
    return list(TopologicalSorter(ordered).static_order())
