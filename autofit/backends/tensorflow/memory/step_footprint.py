"""Estimate the device memory of a train step for any batch size without running it (loads TensorFlow)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from autofit.backends.tensorflow.memory import liveness, xla
from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES
from autofit.backends.tensorflow.memory.graph_reader import GraphReader, ReaderSettings
from autofit.backends.tensorflow.memory.liveness import Operation, Program
from autofit.backends.tensorflow.memory.shapes import Scale, batch_bytes, batch_specs
from autofit.backends.variables import bytes_of, optimizers_of
from autofit.records.description import DATA_PART, Footprint

LIVENESS, XLA = "liveness walk over the traced step", "XLA buffer assignment"

# 95 % are within (measured: plain fits of 38 programs of Keras's gallery; of XLA's, tests/benchmarks/memory.py)
_ERRORS = {LIVENESS: 0.35, XLA: 0.13}
_ABSOLUTE_ERROR_BYTES = 4 * 2**20  # 95 % of small programs are within (measured: ditto)
_FUSED_ERROR = 1.05  # the walk does not fuse what XLA fuses (measured: the walk over the XLA cases of the benchmark)
_EAGER_ERROR = 0.8  # Python's references decide what an eager step holds (measured: -37 % to +78 %)
_GPU_ERROR = 0.5  # a GPU's kernels choose their workspaces when they run (assumed)
_COMPILED_SIZES = 2  # a compilation takes seconds, and two sizes define a line
_BATCHES_ON_CPU = 2  # the current batch and the prefetched one, both in the allocator's memory
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


class StepFootprint:
    """Device memory of a train step: XLA's buffer assignment if XLA compiles the step, else a liveness walk.

    The step is traced once and scaled to any batch size. The traced batch size is a multiple of a prime number that divides
    no dimension of a sample or a weight, so that every dimension which it divides counts samples.

    Args:
        model: compiled; it is built if it is not yet.
        batch: arrays in the structure that Keras passes to `train_step`.
        on_cpu: whether the step runs on the CPU.
        onednn: whether TensorFlow uses oneDNN's kernels there.
        workers: operations that TensorFlow runs at the same time.
        limit_bytes: the device's limit, which a GPU's allocator reserves at once.
        multiple_of: the traced batch size is a multiple of this; None to trace for the batch's own size.
        least_bytes: the smallest buffer that the allocator counts.
        data_tensors: bytes of each tensor of the data, which the allocator holds beside the step.

    Raises:
        Exception: the model's code fails when it is traced.
    """

    def __init__(
        self,
        model: Any,
        batch: Any,
        *,
        on_cpu: bool,
        onednn: bool,
        workers: int = 2,
        limit_bytes: int | None = None,
        multiple_of: int | None = 1,
        least_bytes: int = 1,
        data_tensors: Sequence[int] = (),
    ) -> None:
        self._model, self._batch, self._on_cpu, self._workers = (model, batch, on_cpu, 1 if model.run_eagerly else workers)
        self._onednn, self._least_bytes = on_cpu and onednn, least_bytes
        self._region_bytes = FIRST_REGION_BYTES if on_cpu or not limit_bytes else limit_bytes
        self._data = {DATA_PART: tuple(data_tensors)}
        self._samples, self._graph = self._trace(multiple_of)
        if multiple_of is not None and self._samples != multiple_of * self._prime():  # building added dimensions
            self._samples, self._graph = self._trace(multiple_of)
        of_model = {id(_tensorflow_variable(v)): v for v in model.variables}
        used = {id(v): v for v in self._graph.variables}
        # the model's variables count even if the step does not use them
        self._variables = {
            "weights": list(of_model.values()),
            "optimizer": [variable for key, variable in used.items() if key not in of_model],
        }
        self.optimizer_bytes = bytes_of(self._variables["optimizer"])
        optimizer = getattr(model, "optimizer", None)
        of_optimizer = {id(_tensorflow_variable(v)) for v in (optimizer.variables if optimizer is not None else ())}
        self.uses_model_optimizer = bool(of_optimizer & set(used))

    def estimates(self, batch_sizes: Sequence[int], *, compile_all: bool) -> Iterator[Footprint]:
        """Yield the peak of the walk for each size, then XLA's figures if it compiles the step; see `StepEstimator`."""
        for size in sorted(batch_sizes):
            yield self._footprint(size, self.program(size), LIVENESS)
        if self._model.jit_compile:
            for size in sorted(batch_sizes if compile_all else batch_sizes[:_COMPILED_SIZES]):
                program = self._compiled(size)
                if program is None:
                    return
                yield self._footprint(size, program, XLA)

    def program(self, batch_size: int) -> Program:
        """Return the step for a batch size."""
        settings = ReaderSettings(
            optimizer_names=tuple({optimizer.name for optimizer in optimizers_of(self._model)}),
            scale=Scale(self._samples, batch_size, self._least_bytes),
            on_cpu=self._on_cpu,
            onednn=self._onednn,
            is_eager=bool(self._model.run_eagerly),
        )
        reader = GraphReader(settings)
        handles = {id(handle): inner for handle, inner in self._graph.captures}
        for part, variables in self._variables.items():
            for variable in variables:
                reader.hold(bytes_of([variable]), part, handles.get(id(_tensorflow_variable(variable).handle)))
        reader.read(self._graph)
        held = {"input_batch": self._input_bytes(batch_size), "temporaries": tuple(reader.constants)}
        results = frozenset(reader.inside(self._graph.outputs))
        return Program(tuple(reader.values), tuple(reader.operations), results, held)

    def _trace(self, multiple_of: int | None) -> tuple[int, Any]:
        """Trace the step; returns the traced batch size and the graph."""
        arrays = [leaf for leaf in keras.tree.flatten(self._batch) if leaf is not None and len(leaf.shape) > 0]
        samples = None if multiple_of is None else multiple_of * self._prime()
        graph = tf.function(self._model.train_step).get_concrete_function(batch_specs(self._batch, samples)).graph
        return samples or int(arrays[0].shape[0]), graph

    def _prime(self) -> int:
        shapes = [leaf.shape[1:] for leaf in keras.tree.flatten(self._batch) if leaf is not None]
        dimensions = {int(d) for shape in (*shapes, *(v.shape for v in self._model.variables)) for d in shape if d}
        return next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])

    def _input_bytes(self, batch_size: int) -> tuple[int, ...]:
        return batch_bytes(self._batch, batch_size) * (_BATCHES_ON_CPU if self._on_cpu else 1)

    def _footprint(self, batch_size: int, program: Program, method: str) -> Footprint:
        peak = liveness.peak(
            replace(program, held_bytes={**self._data, **program.held_bytes}),
            workers=self._workers,
            region_bytes=self._region_bytes,
            least_bytes=self._least_bytes,
        )
        return Footprint(batch_size, peak.bytes_by_part, method, self._relative_error(method), _ABSOLUTE_ERROR_BYTES)

    def _relative_error(self, method: str) -> float:
        if method == LIVENESS and self._model.jit_compile:
            return _FUSED_ERROR
        if self._model.run_eagerly:
            return _EAGER_ERROR
        return _ERRORS[method] if self._on_cpu else max(_GPU_ERROR, _ERRORS[method])

    def _compiled(self, batch_size: int) -> Program | None:
        """Return the compiled step as one operation whose workspace is all but the variables and one batch."""
        total = xla.step_bytes(self._model, self._batch, batch_size)
        if total is None:
            return None
        held = {part: tuple(bytes_of([v]) for v in listed) for part, listed in self._variables.items()}
        once = sum(sum(sizes) for sizes in held.values()) + sum(batch_bytes(self._batch, batch_size))
        temporaries = max(0, total - once)
        held["input_batch"] = self._input_bytes(batch_size)
        return Program((), (Operation("step", (), (), workspace_bytes=(temporaries,)),), frozenset(), held)


def _tensorflow_variable(variable: Any) -> Any:
    """Return TensorFlow's variable behind one of Keras."""
    return getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
