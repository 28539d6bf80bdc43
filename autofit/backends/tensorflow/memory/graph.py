"""Read the traced train step of a Keras model as a `Program` (loads TensorFlow, runs no operation)."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autofit.backends.tensorflow.memory.program import Program
from autofit.backends.tensorflow.memory.reader import GraphReader, ReaderSettings
from autofit.backends.tensorflow.memory.shapes import Scale, batch_bytes, batch_specs

_BATCHES_ON_CPU = 2  # the current batch and the prefetched one, both in the allocator's memory
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


class TracedStep:
    """A model's train step, traced once and read as a `Program` for any batch size.

    The traced batch size is a prime number that divides no dimension of a sample or a weight, so that every dimension which
    it divides counts samples.

    Args:
        model: built and compiled, its optimizer built.
        batch: arrays, (x, y) or (x, y, sample_weight), first axis the samples.
        on_cpu: whether the step runs on the CPU.
        onednn: whether TensorFlow uses oneDNN's kernels.
        least_bytes: the smallest buffer that the allocator counts.

    Raises:
        Exception: the model's own code fails while it is traced.
    """

    def __init__(self, model: Any, batch: Any, *, on_cpu: bool, onednn: bool, least_bytes: int = 1) -> None:
        self._model, self._on_cpu, self._onednn, self._least_bytes = model, on_cpu, onednn, least_bytes
        sizes = [leaf.shape[1:] for leaf in keras.tree.flatten(batch)] + [v.shape for v in model.variables]
        dimensions = {d for shape in sizes for d in shape if d}
        self._prime = next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])
        self._batch = batch
        self._graph = tf.function(model.train_step).get_concrete_function(batch_specs(batch, self._prime)).graph

    def program(self, batch_size: int) -> Program:
        """Return the step for a batch size."""
        scale = Scale(self._prime, batch_size, self._least_bytes)
        reader = GraphReader(
            ReaderSettings(
                self._model.optimizer.name, scale, self._on_cpu, self._onednn, is_eager=bool(self._model.run_eagerly)
            )
        )
        handles = {id(handle): inner for handle, inner in self._graph.captures}
        for part, variables in parts_of(self._model).items():
            for variable in variables:
                reader.hold(_variable_bytes(variable), part, handles.get(id(_handle(variable))))
        reader.read(self._graph)
        held = {
            "input_batch": _input_bytes(self._batch, batch_size, on_cpu=self._on_cpu),
            "temporaries": tuple(reader.constants),
        }
        results = frozenset(reader.inside(self._graph.outputs))
        return Program(tuple(reader.values), tuple(reader.operations), results, held)


def held_bytes(model: Any, batch: Any, batch_size: int, *, on_cpu: bool) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the buffers that outlive a step, bytes: variables of model and optimizer, and the batches."""
    return {
        **{part: tuple(_variable_bytes(v) for v in variables) for part, variables in parts_of(model).items()},
        "input_batch": _input_bytes(batch, batch_size, on_cpu=on_cpu),
    }


def parts_of(model: Any) -> dict[str, list[Any]]:
    """Return the variables of model and optimizer, each once."""
    weights = {id(v): v for v in model.variables}
    others = {id(v): v for v in model.optimizer.variables if id(v) not in weights}
    return {"weights": list(weights.values()), "optimizer": list(others.values())}


def _input_bytes(batch: Any, batch_size: int, *, on_cpu: bool) -> tuple[int, ...]:
    return batch_bytes(batch, batch_size) * (_BATCHES_ON_CPU if on_cpu else 1)


def _handle(variable: Any) -> Any:
    """Return what stands for a variable of Keras or of TensorFlow in a graph."""
    return (variable if isinstance(variable, tf.Variable) else variable.value).handle


def _variable_bytes(variable: Any) -> int:
    item_bytes = np.dtype(keras.backend.standardize_dtype(variable.dtype)).itemsize
    return int(math.prod(variable.shape) * item_bytes)
