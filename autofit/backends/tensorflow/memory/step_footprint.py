"""Estimate the device memory of a train step for any batch size without running it (loads TensorFlow)."""

from __future__ import annotations

import copy
import functools
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from autofit.backends import absent_gpu
from autofit.backends.protocol import TrainStep
from autofit.backends.tensorflow.memory import liveness
from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES
from autofit.backends.tensorflow.memory.graph_reader import GraphReader
from autofit.backends.tensorflow.memory.liveness import Operation, Program
from autofit.backends.tensorflow.memory.sizes import Scale
from autofit.backends.variables import bytes_of, optimizers_of
from autofit.records.description import DATA_PART, Footprint
from autofit.records.gpu_models import GpuModel

LIVENESS, XLA = "liveness walk over the traced step", "XLA buffer assignment"

# relative errors that 95% do not exceed (measured: plain fits of 38 programs of Keras's gallery; for XLA, of the cases in
# tests/benchmarks/memory.py)
_ERRORS = {LIVENESS: 0.35, XLA: 0.13}
_ABSOLUTE_ERROR_BYTES = 4 * 2**20  # the error that 95% of small programs do not exceed (measured: likewise)
_FUSED_ERROR = 1.05  # the walk does not fuse what XLA fuses (measured: the walk over the XLA cases of the benchmark)
_EAGER_ERROR = 0.8  # Python's references decide what an eager step holds (measured: -37% to +78%)
_GPU_ERROR = 0.5  # a GPU's kernels choose their workspaces when they run (assumed)
_COMPILED_SIZES = 2  # a compilation takes seconds, and two sizes define a line
_BATCHES_ON_CPU = 2  # the current batch and the prefetched one, both in the allocator's memory
_REPORT = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)
_FLAGS = "XLA_FLAGS"
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


class StepFootprint:
    """Estimates the memory of a train step: XLA's buffer assignment if XLA compiles it, otherwise a liveness walk.

    The step is traced once and scaled to any batch size. The traced batch size is a multiple of a prime number that divides
    no dimension of a sample or a weight. A dimension that is a multiple of the traced batch size is
    therefore a number of samples.

    Creating an estimator builds the model. TensorFlow runs `workers` operations at the same time. If `onednn` is true,
    it uses oneDNN's kernels on the CPU. `least_bytes` is the smallest buffer that the allocator counts.
    """

    def __init__(self, step: TrainStep, *, onednn: bool, workers: int = 2, least_bytes: int = 1) -> None:
        self._step, self._model, self._batch, self._on_cpu = step, step.model, step.batch, step.device is None
        self._onednn, self._least_bytes = self._on_cpu and onednn, least_bytes
        self._workers = 1 if self._model.run_eagerly else workers
        self._samples, self._graph = self._trace()
        # building the model may have added dimensions that the prime number divides
        if step.multiple_of is not None and self._samples != step.multiple_of * self._prime():
            self._samples, self._graph = self._trace()
        of_model = {id(_tensorflow_variable(v)): v for v in self._model.variables}
        used = {id(v): v for v in self._graph.variables}
        # the model's variables count even if the step does not use them
        self._variables = {
            "weights": list(of_model.values()),
            "optimizer": [variable for key, variable in used.items() if key not in of_model],
        }
        self.optimizer_bytes = bytes_of(self._variables["optimizer"])
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = {id(_tensorflow_variable(v)) for v in (optimizer.variables if optimizer is not None else ())}
        self.uses_model_optimizer = bool(of_optimizer & set(used))

    def estimates(self, batch_sizes: Sequence[int], *, compile_all: bool) -> Iterator[Footprint]:
        """Yield the peak of the walk for each size, then XLA's totals if XLA compiles the step; see `StepEstimator`."""
        for size in sorted(batch_sizes):
            yield self._footprint(size, self.program(size), LIVENESS)
        if self._model.jit_compile:
            for size in sorted(batch_sizes if compile_all else batch_sizes[:_COMPILED_SIZES]):
                program = self._compiled(size)
                if program is None:
                    return
                yield self._footprint(size, program, XLA)

    def on_gpu(self, gpu: GpuModel, batch_size: int) -> Footprint:
        """Compile the step for the GPU if XLA compiles it there, else count the tensors of the walk."""
        if not self._model.jit_compile or self._model.run_eagerly:
            there = copy.copy(self)
            there._on_cpu, there._onednn, there._least_bytes = False, False, 1
            return absent_gpu.counted(there._footprint(batch_size, there.program(batch_size), LIVENESS))
        text = _compiler_ir(self._model, self._batch, batch_size, "stablehlo")
        arguments, temporaries = absent_gpu.compiled_bytes(absent_gpu.memory_of_stablehlo(text, gpu))
        held = {part: bytes_of(variables) for part, variables in self._variables.items()}
        batch_bytes = sum(_batch_bytes(self._batch, batch_size))
        beside = max(0, arguments - sum(held.values()) - batch_bytes)
        parts = {**held, "temporaries": temporaries + beside, "input_batch": batch_bytes}
        return Footprint(batch_size, {**parts, DATA_PART: sum(self._step.data_tensors)}, *absent_gpu.ERRORS)

    def program(self, batch_size: int) -> Program:
        """Return the step for a batch size."""
        reader = GraphReader(
            optimizer_names={optimizer.name for optimizer in optimizers_of(self._model)},
            scale=Scale(self._samples, batch_size, self._least_bytes),
            on_cpu=self._on_cpu,
            onednn=self._onednn,
            is_eager=bool(self._model.run_eagerly),
        )
        handles = {id(handle): inner for handle, inner in self._graph.captures}
        for part, variables in self._variables.items():
            for variable in variables:
                reader.hold(bytes_of([variable]), part, handles.get(id(_tensorflow_variable(variable).handle)))
        reader.read(self._graph)
        held = {"input_batch": self._input_bytes(batch_size), "temporaries": reader.constants}
        return reader.program(self._graph.outputs, held)

    def _trace(self) -> tuple[int, Any]:
        arrays = [leaf for leaf in keras.tree.flatten(self._batch) if leaf is not None and len(leaf.shape) > 0]
        samples = None if self._step.multiple_of is None else self._step.multiple_of * self._prime()
        graph = tf.function(self._model.train_step).get_concrete_function(_batch_specs(self._batch, samples)).graph
        return samples or int(arrays[0].shape[0]), graph

    def _prime(self) -> int:
        shapes = [leaf.shape[1:] for leaf in keras.tree.flatten(self._batch) if leaf is not None]
        dimensions = {int(d) for shape in (*shapes, *(v.shape for v in self._model.variables)) for d in shape if d}
        return next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])

    def _input_bytes(self, batch_size: int) -> list[int]:
        return _batch_bytes(self._batch, batch_size) * (_BATCHES_ON_CPU if self._on_cpu else 1)

    def _footprint(self, batch_size: int, program: Program, method: str) -> Footprint:
        held = {DATA_PART: self._step.data_tensors, **program.held_bytes}
        region_bytes = FIRST_REGION_BYTES if self._on_cpu or not self._step.limit_bytes else self._step.limit_bytes
        bytes_by_part = liveness.peak(
            replace(program, held_bytes=held),
            workers=self._workers,
            region_bytes=region_bytes,
            least_bytes=self._least_bytes,
        )
        return Footprint(batch_size, bytes_by_part, method, self._relative_error(method), _ABSOLUTE_ERROR_BYTES)

    def _relative_error(self, method: str) -> float:
        if method == LIVENESS and self._model.jit_compile:
            return _FUSED_ERROR
        if self._model.run_eagerly:
            return _EAGER_ERROR
        return _ERRORS[method] if self._on_cpu else max(_GPU_ERROR, _ERRORS[method])

    def _compiled(self, batch_size: int) -> Program | None:
        """Return the compiled step as one operation, with XLA's total as its workspace; None if XLA reports no total."""
        total = compiled_bytes(self._model, self._batch, batch_size)
        if total is None:
            return None
        held = {part: [bytes_of([v]) for v in variables] for part, variables in self._variables.items()}
        once = sum(sum(sizes) for sizes in held.values()) + sum(_batch_bytes(self._batch, batch_size))
        temporaries = max(0, total - once)
        held["input_batch"] = self._input_bytes(batch_size)
        return Program((), (Operation("step", (), (), workspace_bytes=(temporaries,)),), frozenset(), held)


def _tensorflow_variable(variable: Any) -> Any:
    return getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable


def compiled_bytes(model: Any, batch: Any, batch_size: int) -> int | None:
    """Return the total size in bytes of all buffers of the train step compiled by XLA, including the variables.

    XLA writes a memory-usage report of each compilation if its flags request one, but it reads its flags only once per
    process. Return None if XLA cannot compile the step, or if the flags were set too late to take effect.
    """
    reports = _reports()
    try:
        _compiler_ir(model, batch, batch_size, "optimized_hlo")
    except (tf.errors.OpError, ValueError, NotImplementedError):
        return None
    texts = [file.read_text() for file in reports.glob("*memory-usage-report.txt")]
    shutil.rmtree(reports, ignore_errors=True)  # XLA creates the folder again
    return max((int(match[1]) for text in texts for match in _REPORT.finditer(text)), default=None)


def _compiler_ir(model: Any, batch: Any, batch_size: int, stage: str) -> str:
    """Return the train step at a stage of XLA's compilation, as text."""
    specs = _batch_specs(batch, batch_size)

    def step(*leaves: Any) -> Any:
        return model.train_step(keras.tree.pack_sequence_as(specs, leaves))

    compiled = tf.function(step, jit_compile=True)
    device = {"device_name": "/device:CPU:0"} if stage == "stablehlo" else {}  # that stage is the same for all devices
    text: str = compiled.experimental_get_compiler_ir(*keras.tree.flatten(specs))(stage, **device)
    return text


@functools.cache
def _reports() -> Path:
    """Create a folder and set the flags that make XLA write its reports there."""
    folder = Path(tempfile.mkdtemp(prefix="autofit-xla-"))
    os.environ[_FLAGS] = f"{os.environ.get(_FLAGS, '')} --xla_dump_to={folder} --xla_dump_hlo_as_text".strip()
    return folder


def _batch_bytes(batch: Any, batch_size: int) -> list[int]:
    specs = [leaf for leaf in keras.tree.flatten(_batch_specs(batch, batch_size)) if isinstance(leaf, tf.TensorSpec)]
    return [math.prod(leaf.shape.as_list()) * int(leaf.dtype.size) for leaf in specs]


def _batch_specs(batch: Any, batch_size: int | None) -> Any:
    """Return the TensorSpecs of a batch; if `batch_size` is None, the arrays keep their first dimension."""
    return keras.tree.map_structure(lambda leaf: _spec(leaf, batch_size), batch)


def _spec(leaf: Any, batch_size: int | None) -> Any:
    if leaf is None:
        return None
    if hasattr(leaf, "nested_row_splits") or hasattr(leaf, "dense_shape"):
        return tf.type_spec_from_value(leaf)
    if hasattr(leaf, "tocoo"):
        return tf.SparseTensorSpec(leaf.shape, leaf.dtype)
    first = leaf.shape[:1] if batch_size is None or not leaf.shape else (batch_size,)
    return tf.TensorSpec((*first, *leaf.shape[1:]), leaf.dtype)
