"""Read the traced train step of a Keras model as a `Program` (loads TensorFlow, runs no operation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from autofit.backends.tensorflow.memory.graph_reader import GraphReader, ReaderSettings
from autofit.backends.tensorflow.memory.program import Program
from autofit.backends.tensorflow.memory.shapes import Scale, batch_bytes, batch_specs
from autofit.backends.variables import bytes_of, optimizers_of

_BATCHES_ON_CPU = 2  # the current batch and the prefetched one, both in the allocator's memory
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


@dataclass(frozen=True)
class StepVariables:
    """The variables that a traced step uses: "weights", those of the model, "optimizer", all others.

    `uses_model_optimizer` says whether those of `model.optimizer` are among them.
    """

    by_part: Mapping[str, Sequence[Any]]
    uses_model_optimizer: bool

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the variables beside the model's own."""
        return bytes_of(self.by_part["optimizer"])


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
        least_bytes: the smallest buffer that the allocator counts.

    Raises:
        Exception: the model's own code fails while it is traced.
    """

    def __init__(
        self,
        model: Any,
        batch: Any,
        *,
        on_cpu: bool,
        onednn: bool,
        multiple_of: int | None = 1,
        least_bytes: int = 1,
    ) -> None:
        self._model, self._on_cpu, self._onednn, self._least_bytes = model, on_cpu, onednn, least_bytes
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
        scale = Scale(self._samples, batch_size, self._least_bytes)
        names = tuple({optimizer.name for optimizer in optimizers_of(self._model)})
        is_eager = bool(self._model.run_eagerly)
        settings = ReaderSettings(names, scale, self._on_cpu, self._onednn, is_eager=is_eager)
        reader = GraphReader(settings)
        handles = {id(handle): inner for handle, inner in self._graph.captures}
        for part, variables in self.variables.by_part.items():
            for variable in variables:
                reader.hold(bytes_of([variable]), part, handles.get(id(_tensorflow_variable(variable).handle)))
        reader.read(self._graph)
        held = {
            "input_batch": _input_bytes(self._batch, batch_size, on_cpu=self._on_cpu),
            "temporaries": tuple(reader.constants),
        }
        results = frozenset(reader.inside(self._graph.outputs))
        return Program(tuple(reader.values), tuple(reader.operations), results, held)

    def held_bytes(self, batch_size: int, *, on_cpu: bool) -> dict[str, tuple[int, ...]]:
        """Return the bytes of each buffer that outlives a step: variables of model and optimizers, and the batches."""
        return {
            **{part: tuple(bytes_of([v]) for v in listed) for part, listed in self.variables.by_part.items()},
            "input_batch": _input_bytes(self._batch, batch_size, on_cpu=on_cpu),
        }

    def _dimensions(self) -> set[int]:
        shapes = [leaf.shape[1:] for leaf in keras.tree.flatten(self._batch) if leaf is not None]
        return {int(d) for shape in (*shapes, *(v.shape for v in self._model.variables)) for d in shape if d}

    def _prime(self) -> int:
        dimensions = self._dimensions()
        return next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])

    def _variables(self) -> StepVariables:
        """Split the variables that the step uses; those of the model count whether it uses them or not."""
        of_model = {id(_tensorflow_variable(v)): v for v in self._model.variables}
        used = {id(v): v for v in self._graph.variables}
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = {id(_tensorflow_variable(v)) for v in (optimizer.variables if optimizer is not None else ())}
        return StepVariables(
            {
                "weights": list(of_model.values()),
                "optimizer": [v for key, v in used.items() if key not in of_model],
            },
            bool(of_optimizer & set(used)),
        )


def _tensorflow_variable(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras."""
    return getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable


def _input_bytes(batch: Any, batch_size: int, *, on_cpu: bool) -> tuple[int, ...]:
    return batch_bytes(batch, batch_size) * (_BATCHES_ON_CPU if on_cpu else 1)
