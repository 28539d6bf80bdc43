"""Estimate the memory of a train step from XLA's buffer assignment, without running the step (loads
JAX).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from autofit.backends import absent_gpu
from autofit.backends.jax.backend import BATCHES_ON_GPU
from autofit.backends.protocol import TrainStep, bytes_of_optimizers
from autofit.records.description import Footprint
from autofit.records.machine import Device

XLA = "XLA buffer assignment"
# relative to the growth of a process on a CPU, on which kernels take as much memory again; XLA's
# total for a batch size is within 0.13 of the line through two other sizes (measured: nine models
# on a CPU)
_ERROR = 0.8
# a GPU's compiler chooses workspaces (0.98 to 1.00 of the peaks on an H200)
_GPU_ERROR = 0.1
_ABSOLUTE_ERROR_BYTES = 2**20
# of the sizes before a tune: a compilation takes seconds, and the first trial of another size shows
# the line
_COMPILED_SIZES = 1
_TRACED_MULTIPLE = 2  # a batch of one sample may be a special case


class StepFootprint:
    """Estimates the memory of a train step: arguments, temporaries, and results that do not replace
    an argument.
    """

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._model = step.model
        self._model._symbolic_build(data_batch=step.batch)
        if step.multiple_of is None:
            self._lowered(step.own_size)
        else:
            self._lowered(step.multiple_of * _TRACED_MULTIPLE)
        self.optimizer_bytes = bytes_of_optimizers(self._model)
        # Keras passes no other optimizer's state to the step
        self.uses_model_optimizer = True

    def estimates(
        self, batch_sizes: Sequence[int], *, compile_all: bool
    ) -> Iterator[Footprint]:
        on_cpu = self._step.device is None
        batches = 1 if on_cpu else BATCHES_ON_GPU
        method = XLA, _ERROR if on_cpu else _GPU_ERROR, _ABSOLUTE_ERROR_BYTES
        wanted = batch_sizes if compile_all else batch_sizes[:_COMPILED_SIZES]
        multiple = self._step.multiple_of
        if multiple is None:
            sizes = {self._step.own_size}
        else:
            sizes = {multiple * math.ceil(size / multiple) for size in wanted}
        for size in sorted(sizes):
            program = self._lowered(size).compile()
            yield self._footprint(size, program, batches, method)

    def _footprint(
        self, size: int, program: Any, batches: int, method: tuple[str, float, int]
    ) -> Footprint:
        arguments, temporaries = absent_gpu.compiled_bytes(program.memory_analysis())
        state = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self._state())
        )
        parts = {
            "weights": state - self.optimizer_bytes,
            "optimizer": self.optimizer_bytes,
            "temporaries": temporaries,
            "input_batch": batches * max(0, arguments - state),
        }
        return Footprint(size, parts, *method)

    def on_gpu(self, gpu: Device, batch_size: int) -> Footprint:
        lowered = self._lowered(
            batch_size, SingleDeviceSharding(absent_gpu.target_of(gpu))
        )
        program = absent_gpu.compiled(
            lambda flags: lowered.compile(compiler_options=flags)
        )
        return self._footprint(batch_size, program, BATCHES_ON_GPU, absent_gpu.ERRORS)

    def _lowered(self, size: int, sharding: Any = None) -> Any:
        def resized(leaf: Any) -> Any:
            shape = leaf.shape if np.ndim(leaf) == 0 else (size, *leaf.shape[1:])
            kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
            return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)

        step = jax.jit(self._model.train_step, donate_argnums=0)
        batch = jax.tree.map(resized, self._step.batch)
        return step.lower(self._state(sharding), batch)

    def _state(self, sharding: Any = None) -> Any:
        # the shapes of the step's arguments other than the batch
        state = self._model._get_jax_state(
            trainable_variables=True,
            non_trainable_variables=True,
            optimizer_variables=True,
            metrics_variables=True,
        )
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            state,
        )
