"""Read the traced train step of a Keras model as a `Program` (loads TensorFlow, runs no operation)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autofit.backends.tensorflow.memory import loops
from autofit.backends.tensorflow.memory.kernels import OVERWRITES, VIEWS, onednn_takes, processor_flags, workspace_bytes
from autofit.backends.tensorflow.memory.liveness import peak
from autofit.backends.tensorflow.memory.program import OUTSIDE, Operation, Program, Value
from autofit.backends.tensorflow.memory.shapes import Scale, batch_bytes, batch_specs

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_OVERHEAD_SECONDS = 5e-6  # rough rates of two cores: they decide only which operations overlap
_BYTES_PER_SECOND, _OPERATIONS_PER_SECOND = 5e9, 2e10
_BATCHES_ON_CPU = 2  # the current batch and the prefetched one, both in the allocator's memory
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


@dataclass(frozen=True)
class StepVariables:
    """The bytes of each variable that a traced step uses, and whether those of `model.optimizer` are among them."""

    model: tuple[int, ...]
    optimizer: tuple[int, ...]
    uses_model_optimizer: bool


class TracedStep:
    """A model's train step, traced once and read as a `Program` for any batch size.

    The traced batch size is a multiple of a prime number that divides no dimension of a sample or a weight, so that every
    dimension which it divides counts samples.

    Args:
        model: compiled; it is built if it is not yet.
        batch: arrays in the structure that Keras hands to `train_step`.
        on_cpu: whether the step runs on the CPU.
        onednn: whether TensorFlow uses oneDNN's kernels.
        multiple_of: the traced batch size is a multiple of this; None to trace for the batch's own size.

    Raises:
        Exception: the model's own code fails while it is traced.
    """

    def __init__(self, model: Any, batch: Any, *, on_cpu: bool, onednn: bool, multiple_of: int | None = 1) -> None:
        self._model, self._on_cpu, self._onednn = model, on_cpu, onednn
        self._batch = batch
        self._samples, self._graph = self._trace(multiple_of)
        if multiple_of is not None and self._samples != multiple_of * self._prime():  # building brought more dimensions
            self._samples, self._graph = self._trace(multiple_of)
        self.variables = self._variables()

    def _trace(self, multiple_of: int | None) -> tuple[int, Any]:
        """Trace the step; returns the traced batch size and the graph."""
        arrays = [leaf for leaf in keras.tree.flatten(self._batch) if leaf is not None and len(leaf.shape) > 0]
        samples = None if multiple_of is None else multiple_of * self._prime()
        graph = tf.function(self._model.train_step).get_concrete_function(batch_specs(self._batch, samples)).graph
        return samples or int(arrays[0].shape[0]), graph

    def program(self, batch_size: int) -> Program:
        """Return the step for a batch size."""
        scale = Scale(self._samples, batch_size)
        reader = _Reader(self._optimizer_names(), scale, on_cpu=self._on_cpu, onednn=self._onednn)
        reader.read(self._graph, {})
        held = {**self.held_bytes(batch_size, on_cpu=self._on_cpu), "temporaries": tuple(reader.constants)}
        results = frozenset(reader.inside(self._graph.outputs))
        return Program(tuple(reader.values), tuple(reader.operations), results, held)

    def held_bytes(self, batch_size: int, *, on_cpu: bool) -> dict[str, tuple[int, ...]]:
        """Return the bytes of each buffer that outlives a step: variables of model and optimizers, and the batches."""
        return {
            "weights": self.variables.model,
            "optimizer": self.variables.optimizer,
            "input_batch": batch_bytes(self._batch, batch_size) * (_BATCHES_ON_CPU if on_cpu else 1),
        }

    def _dimensions(self) -> set[int]:
        shapes = [leaf.shape[1:] for leaf in keras.tree.flatten(self._batch) if leaf is not None]
        return {int(d) for shape in (*shapes, *(v.shape for v in self._model.variables)) for d in shape if d}

    def _prime(self) -> int:
        dimensions = self._dimensions()
        return next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])

    def _variables(self) -> StepVariables:
        """Split the variables that the step uses; those of the model count whether it uses them or not."""
        of_model = {id(_handle(v)): v for v in self._model.variables}
        used = {id(v): v for v in self._graph.variables}
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = {id(_handle(v)) for v in (optimizer.variables if optimizer is not None else ())}
        return StepVariables(
            tuple(_variable_bytes(v) for v in of_model.values()),
            tuple(_variable_bytes(v) for key, v in used.items() if key not in of_model),
            bool(of_optimizer & set(used)),
        )

    def _optimizer_names(self) -> tuple[str, ...]:
        """Names under which optimizers write their operations into the graph."""
        named = [value for value in vars(self._model).values() if hasattr(value, "apply_gradients")]
        return tuple({optimizer.name for optimizer in (getattr(self._model, "optimizer", None), *named) if optimizer})


def _handle(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras."""
    return getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable


def _variable_bytes(variable: Any) -> int:
    item_bytes = np.dtype(keras.backend.standardize_dtype(variable.dtype)).itemsize
    return int(math.prod(variable.shape) * item_bytes)


class _Reader:
    """Reads graphs: inlines function calls, and turns loops and branches into one operation with their body's peak."""

    def __init__(self, optimizer_names: tuple[str, ...], scale: Scale, *, on_cpu: bool, onednn: bool) -> None:
        self._optimizer_names, self._scale, self._on_cpu, self._onednn = optimizer_names, scale, on_cpu, onednn
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.constants: list[int] = []
        self._index: dict[int, int] = {}  # the value of a tensor, by the tensor's id
        self._number: dict[int, tuple[int, ...]] = {}  # the operations that represent a graph's operation, by its id
        self._keep: list[Any] = []  # keeps the objects alive whose ids are keys

    def inside(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """Return the values of the tensors that the step itself holds."""
        return tuple(v for v in (self._index[id(t)] for t in tensors) if v != OUTSIDE)

    def read(self, graph: Any, given: dict[int, int], prefix: str = "") -> None:
        """Append the graph's operations; `given` maps the ids of its input tensors to existing values."""
        self._keep.append(graph)
        self._index.update(given)
        for op in _in_order(graph):
            after = tuple(n for control in op.control_inputs for n in self._number.get(id(control), ()))
            if op.type in _CALLS:
                self._number[id(op)] = self._call(op, prefix)
                continue
            for tensor in op.outputs:
                if id(tensor) not in self._index:
                    self._index[id(tensor)] = self._value(op, tensor, prefix)
            if op.type in ("Placeholder", "Const", "NoOp") and not op.control_inputs:
                continue
            self._number[id(op)] = (len(self.operations),)
            self.operations.append(
                Operation(
                    name=prefix + op.name,
                    inputs=self.inside(op.inputs),
                    outputs=self.inside(op.outputs),
                    after=after,
                    workspace_bytes=self._workspace(op),
                    may_overwrite=self._may_overwrite(op),
                    seconds=self._seconds(op),
                )
            )

    def _call(self, op: Any, prefix: str) -> tuple[int, ...]:
        body = op.graph._get_function(op.get_attr("f").name).graph
        given = {id(inner): self._index[id(outer)] for inner, outer in zip(body.inputs, op.inputs, strict=True)}
        first = len(self.operations)
        self.read(body, given, f"{prefix}{op.name}/")
        for outer, inner in zip(op.outputs, body.outputs, strict=True):
            self._index[id(outer)] = self._index[id(inner)]
        return tuple(range(first, len(self.operations)))

    def _value(self, op: Any, tensor: Any, prefix: str) -> int:
        """Return a new value for a tensor, or `OUTSIDE` where the step does not hold it itself."""
        alias, size = None, self._scale.tensor_bytes(tensor)
        if op.type == "Const":
            self.constants.append(size)
        if op.type in ("Const", "Placeholder", *loops.BORROWED) or (op.type in VIEWS and not op.inputs):
            return OUTSIDE
        if op.type in VIEWS:
            index = tensor.value_index if len(op.inputs) == len(op.outputs) else 0
            alias = self._index[id(op.inputs[index])]
            if alias == OUTSIDE:
                return OUTSIDE
        elif tensor.dtype == tf.variant:
            size = loops.list_bytes(tensor, self._scale)
        self.values.append(Value(size, self._part(prefix + op.name), alias))
        return len(self.values) - 1

    def _part(self, name: str) -> str:
        if any(f"{optimizer}/" in name for optimizer in self._optimizer_names):
            return "temporaries"
        return "gradients" if "gradient_tape/" in name or "gradients/" in name else "activations"

    def _workspace(self, op: Any) -> tuple[int, ...]:
        if op.type in loops.LOOPS:
            return (self._body_bytes(loops.body_of(op)), loops.waiting_bytes(op, self._scale))
        if op.type in _BRANCHES:
            return (max(self._body_bytes(branch) for branch in loops.branches_of(op)),)
        inputs, outputs = ([self._scale.shape(t) for t in side] for side in (op.inputs, op.outputs))
        shapes = [shape for shape in (*inputs, *outputs) if shape is not None]
        if not self._on_cpu or not outputs or len(shapes) < len(inputs) + len(outputs):
            return ()
        dtype = op.outputs[0].dtype
        onednn = onednn_takes(dtype.name, processor_flags(), onednn=self._onednn)
        return workspace_bytes(op.type, shapes[: len(inputs)], shapes[len(inputs) :], dtype.size, onednn=onednn)

    def _body_bytes(self, body: Any) -> int:
        reader = _Reader(self._optimizer_names, self._scale, on_cpu=self._on_cpu, onednn=self._onednn)
        reader.read(body, {id(t): OUTSIDE for t in body.inputs})
        results = frozenset(reader.inside(body.outputs))
        return peak(Program(tuple(reader.values), tuple(reader.operations), results)).total_bytes

    def _may_overwrite(self, op: Any) -> tuple[int, ...]:
        if op.type not in OVERWRITES or not op.outputs:
            return ()
        output = op.outputs[0]
        size = self._scale.tensor_bytes(output)
        same = [t for t in op.inputs if t.dtype.size == output.dtype.size and self._scale.tensor_bytes(t) == size]
        return self.inside(same)

    def _seconds(self, op: Any) -> float:
        """Return a rough duration on two cores."""
        moved = sum(self._scale.tensor_bytes(t) for t in (*op.inputs, *op.outputs))
        return _OVERHEAD_SECONDS + moved / _BYTES_PER_SECOND + self._arithmetic(op) / _OPERATIONS_PER_SECOND

    def _arithmetic(self, op: Any) -> float:
        """Return the floating-point operations of convolutions and matrix products; 0 for kernels that only move bytes."""
        shapes = [self._scale.shape(t) or () for t in (*op.inputs, *op.outputs)]
        if op.type.startswith(("Conv2D", "Conv3D")):
            images = [shape for shape in shapes if len(shape) > 3]
            return 2.0 * max(math.prod(s[:-1]) for s in images) * min(math.prod(s) for s in images) if images else 0.0
        if "MatMul" in op.type and len(shapes) > 2:
            return 2.0 * math.sqrt(math.prod(math.prod(shape) for shape in shapes[:3]))
        return 0.0


def _in_order(graph: Any) -> list[Any]:
    """Return the operations that a result or a side effect depends on, in topological order.

    TensorFlow prunes the others, such as the gradient of the data. A loop may have inputs that were added to the graph
    after it, so the graph's own order is not topological.
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
