"""Estimate the device memory of a train step for any batch size without running it (loads
TensorFlow).
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from autofit.backends import absent_gpu
from autofit.backends.protocol import TrainStep, bytes_of_variables, optimizers_of
from autofit.backends.tensorflow.backend import uses_onednn, xla_reports
from autofit.backends.tensorflow.step_program import StepProgram
from autofit.records.description import DATA_PART, Footprint
from autofit.records.machine import Device

LIVENESS = "liveness walk over the traced step"
XLA = "XLA buffer assignment"

# relative errors that 95% do not exceed (measured: nine models and twelve programs, part 8 of
# tests/benchmarks/memory-parts.txt; for XLA, the cases in tests/benchmarks/memory.py)
_ERRORS = {LIVENESS: 0.35, XLA: 0.13}
# the error that 95% of small programs do not exceed (measured: likewise)
_ABSOLUTE_ERROR_BYTES = 4 * 2**20
# the walk does not fuse what XLA fuses (measured: the walk over the XLA cases of the benchmark)
_FUSED_ERROR = 1.05
# Python's references decide what an eager step holds (measured: -37% to +78%)
_EAGER_ERROR = 0.8
_GPU_ERROR = 0.5  # a GPU's kernels choose their workspaces when they run (assumed)
_COMPILED_SIZES = 2  # a compilation takes seconds, and two sizes define a line
# the current batch and the prefetched one, both in the allocator's memory
_BATCHES_ON_CPU = 2
# the allocator's chunks by what is requested (measured: tests/benchmarks/memory-parts.txt)
_CHUNK_FACTOR = 1.12
# bfc_allocator.cc
_FIRST_REGION_BYTES = 2 * 2**20
_MOST_WASTE_BYTES = 128 * 2**20
_REPORT = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)
_THREADS = "TF_NUM_INTEROP_THREADS"
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


class StepFootprint:
    """Estimates the memory of a train step: XLA's buffer assignment if XLA compiles it, otherwise a
    walk over its graph.
    """

    # The step is traced once, which builds the model, and scaled to any batch size. The traced
    # batch size is a multiple of a prime number that divides no dimension of a sample or a weight.
    # A dimension that is a multiple of the traced batch size is therefore a number of samples.

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._model = step.model
        self._batch = step.batch
        samples, self._graph = self._trace()
        # building the model may have added dimensions that the prime number divides
        if step.multiple_of is not None and samples != step.multiple_of * self._prime():
            samples, self._graph = self._trace()
        of_model, used = (
            {id(_tensorflow_variable(v)): v for v in each.variables}
            for each in (self._model, self._graph)
        )
        # sizes in bytes; the model's variables count even if the step does not use them
        self._variables = {
            "weights": [
                bytes_of_variables([variable]) for variable in of_model.values()
            ],
            "optimizer": [
                bytes_of_variables([variable])
                for key, variable in used.items()
                if key not in of_model
            ],
        }
        self._variable_bytes = sum(map(sum, self._variables.values()))
        self.optimizer_bytes = sum(self._variables["optimizer"])
        optimizer = getattr(self._model, "optimizer", None)
        self.uses_model_optimizer = any(
            id(_tensorflow_variable(v)) in used
            for v in getattr(optimizer, "variables", ())
        )
        threads = (
            tf.config.threading.get_inter_op_parallelism_threads()
            or os.environ.get(_THREADS)
            or os.cpu_count()
            or 1
        )
        self._program = StepProgram(
            samples,
            samples,
            threads=1 if self._model.run_eagerly else int(threads),
            on_cpu=step.device is None,
            onednn=uses_onednn() and step.device is None,
            is_eager=bool(self._model.run_eagerly),
            optimizer_names={
                optimizer.name for optimizer in optimizers_of(self._model)
            },
        )

    def estimates(
        self, batch_sizes: Sequence[int], *, compile_all: bool
    ) -> Iterator[Footprint]:
        # the peak of the walk for each size, then XLA's totals if XLA compiles the step
        for size in sorted(batch_sizes):
            yield self._walked(replace(self._program, batch_size=size))
        if self._model.jit_compile:
            wanted = batch_sizes if compile_all else batch_sizes[:_COMPILED_SIZES]
            for size in sorted(wanted):
                total = self._compiled_bytes(size)
                if total is None:
                    return
                beyond = self._beyond_arguments(total, size)
                # each weight takes two more buffers while it is drawn, which leave regions behind
                if self._program.on_cpu:
                    drawn = 2 * max(self._variables["weights"], default=0)
                    beyond = _chunk_bytes(beyond, self._variable_bytes + drawn)
                yield self._footprint(
                    replace(self._program, batch_size=size),
                    {"temporaries": beyond},
                    self._method(XLA),
                )

    def on_gpu(self, gpu: Device, batch_size: int) -> Footprint:
        """Compile the step for the GPU if XLA compiles it there, else count the tensors of the
        walk.
        """
        there = replace(
            self._program, batch_size=batch_size, on_cpu=False, onednn=False
        )
        if not self._model.jit_compile or self._model.run_eagerly:
            return absent_gpu.counted(self._walked(there))
        text = self._compiler_ir(batch_size, "stablehlo")
        arguments, temporaries = absent_gpu.compiled_bytes(
            absent_gpu.memory_of_stablehlo(text, gpu)
        )
        beyond = temporaries + self._beyond_arguments(arguments, batch_size)
        return self._footprint(there, {"temporaries": beyond}, absent_gpu.ERRORS)

    def _beyond_arguments(self, total_bytes: int, batch_size: int) -> int:
        beyond = total_bytes - self._variable_bytes - sum(self._batch_bytes(batch_size))
        return max(0, beyond)

    def _walked(self, program: StepProgram) -> Footprint:
        return self._footprint(
            program,
            program.peak(self._graph),
            self._method(LIVENESS),
            factor=_CHUNK_FACTOR,
        )

    def _footprint(
        self,
        program: StepProgram,
        of_step: Mapping[str, int],
        method: tuple[str, float, int],
        factor: float = 1.0,
    ) -> Footprint:
        # what a step holds, with what outlives it: data, variables and the input
        inputs = self._batch_bytes(program.batch_size)
        if program.on_cpu:
            inputs *= _BATCHES_ON_CPU
        outlives = {**self._variables, "input_batch": inputs}
        data = (
            _chunk_bytes(size) if program.on_cpu else size
            for size in self._step.data_tensors
        )
        held = {part: sum(sizes) for part, sizes in outlives.items()}
        parts = {
            part: round(factor * size) for part, size in {**held, **of_step}.items()
        }
        return Footprint(program.batch_size, {DATA_PART: sum(data), **parts}, *method)

    def _trace(self) -> tuple[int, Any]:
        samples = None
        if self._step.multiple_of is not None:
            samples = self._step.multiple_of * self._prime()
        traced = tf.function(self._model.train_step).get_concrete_function(
            self._batch_specs(samples)
        )
        if samples is None:
            leaves = keras.tree.flatten(self._batch)
            shapes = [leaf.shape for leaf in leaves if leaf is not None]
            samples = next(int(shape[0]) for shape in shapes if len(shape) > 0)
        return samples, traced.graph

    def _prime(self) -> int:
        shapes = [
            leaf.shape[1:]
            for leaf in keras.tree.flatten(self._batch)
            if leaf is not None
        ]
        dimensions = {
            int(d)
            for shape in (*shapes, *(v.shape for v in self._model.variables))
            for d in shape
            if d
        }
        return next((p for p in _PRIMES if all(d % p for d in dimensions)), _PRIMES[0])

    def _method(self, name: str) -> tuple[str, float, int]:
        """Return the name of a method and its error bounds."""
        error = (
            _ERRORS[name] if self._program.on_cpu else max(_GPU_ERROR, _ERRORS[name])
        )
        if self._model.run_eagerly:
            error = _EAGER_ERROR
        if name == LIVENESS and self._model.jit_compile:
            error = _FUSED_ERROR
        return name, error, _ABSOLUTE_ERROR_BYTES

    def _compiled_bytes(self, batch_size: int) -> int | None:
        """Return the bytes of all buffers of the step compiled by XLA, variables included; None if
        XLA cannot compile it.
        """
        # of memory usage: XLA writes one for each compilation, also those of the user's code before
        reports = xla_reports()
        shutil.rmtree(reports, ignore_errors=True)  # XLA creates the folder again
        try:
            self._compiler_ir(batch_size, "optimized_hlo")
        except (tf.errors.OpError, ValueError, NotImplementedError):
            return None
        texts = [file.read_text() for file in reports.glob("*memory-usage-report.txt")]
        shutil.rmtree(reports, ignore_errors=True)
        # none if its flags were set too late
        return max(
            (int(match[1]) for text in texts for match in _REPORT.finditer(text)),
            default=None,
        )

    def _compiler_ir(self, batch_size: int, stage: str) -> str:
        specs = self._batch_specs(batch_size)

        def step(*leaves: Any) -> Any:
            return self._model.train_step(keras.tree.pack_sequence_as(specs, leaves))

        compiled = tf.function(step, jit_compile=True)
        # that stage is the same for all devices
        device = {"device_name": "/device:CPU:0"} if stage == "stablehlo" else {}
        text: str = compiled.experimental_get_compiler_ir(*keras.tree.flatten(specs))(
            stage, **device
        )
        return text

    def _batch_bytes(self, batch_size: int) -> list[int]:
        specs = [
            leaf
            for leaf in keras.tree.flatten(self._batch_specs(batch_size))
            if isinstance(leaf, tf.TensorSpec)
        ]
        return [
            math.prod(leaf.shape.as_list()) * int(leaf.dtype.size) for leaf in specs
        ]

    def _batch_specs(self, batch_size: int | None) -> Any:
        # if there is no `batch_size`, the arrays keep their first dimension

        def spec(leaf: Any) -> Any:
            if leaf is None:
                return None
            if hasattr(leaf, "nested_row_splits"):
                return tf.type_spec_from_value(leaf)
            first = (
                leaf.shape[:1]
                if batch_size is None or not leaf.shape
                else (batch_size,)
            )
            is_sparse = hasattr(leaf, "dense_shape") or hasattr(leaf, "tocoo")
            kind = tf.SparseTensorSpec if is_sparse else tf.TensorSpec
            return kind((*first, *leaf.shape[1:]), leaf.dtype)

        return keras.tree.map_structure(spec, self._batch)


def _tensorflow_variable(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _chunk_bytes(size_bytes: int, earlier_bytes: int = 0) -> int:
    """Return what a CPU's allocator takes for a large buffer after `earlier_bytes`: a region,
    larger than those before.
    """
    region = _FIRST_REGION_BYTES
    while region < max(size_bytes, earlier_bytes):
        region *= 2
    # it does not split a chunk that is less than twice as large as needed and less than 128 MiB
    # larger (bfc_allocator.cc)
    return (
        region
        if size_bytes < region < min(2 * size_bytes, size_bytes + _MOST_WASTE_BYTES)
        else size_bytes
    )
