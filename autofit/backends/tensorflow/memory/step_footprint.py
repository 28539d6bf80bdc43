"""Estimate the device memory of a train step for any batch size without running it (loads TensorFlow)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from autofit.backends.tensorflow.memory import liveness, xla
from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES
from autofit.backends.tensorflow.memory.program import Operation, Program
from autofit.backends.tensorflow.memory.traced_step import TracedStep
from autofit.records.description import DATA_PART, Footprint

LIVENESS, XLA = "liveness walk over the traced step", "XLA buffer assignment"

# 95 % are within (measured: plain fits of 38 programs of Keras's gallery; of XLA's, tests/benchmarks/memory.py)
_ERRORS = {LIVENESS: 0.35, XLA: 0.13}
_ABSOLUTE_ERROR_BYTES = 4 * 2**20  # 95 % of small programs are within (measured: ditto)
_FUSED_ERROR = 1.05  # the walk keeps apart what XLA fuses (measured: the walk over the XLA cases of the same)
_EAGER_ERROR = 0.8  # what an eager step holds is up to Python's references (measured: -37 % to +78 %)
_COMPILED_SIZES = 2  # a compilation takes seconds, and two sizes give a line
_GPU_ERROR = 0.5  # a GPU's kernels choose their workspaces when they run; not measured


class StepFootprint:
    """Device memory of a model's train step: XLA's buffer assignment where XLA compiles the step, else a liveness walk.

    Args:
        model: compiled; it is built if it is not yet.
        batch: arrays in the structure that Keras hands to `train_step`.
        on_cpu: whether the step runs on the CPU.
        onednn: whether TensorFlow uses oneDNN's kernels there.
        workers: operations that TensorFlow runs at the same time.
        limit_bytes: the device's limit, which a GPU's allocator reserves at once.
        multiple_of: see `TracedStep`.
        least_bytes: the smallest buffer that the allocator counts.
        data_tensors: bytes of each tensor of the data, which the allocator holds beside the step.

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
        workers: int,
        limit_bytes: int | None,
        multiple_of: int | None = 1,
        least_bytes: int = 1,
        data_tensors: Sequence[int] = (),
    ) -> None:
        self._model, self._batch, self._on_cpu, self._workers = (model, batch, on_cpu, 1 if model.run_eagerly else workers)
        self._onednn, self._least_bytes = on_cpu and onednn, least_bytes
        self._limit_bytes = None if on_cpu else limit_bytes
        self._data = {DATA_PART: tuple(data_tensors)}
        self._traced = TracedStep(
            model, batch, on_cpu=on_cpu, onednn=self._onednn, multiple_of=multiple_of, least_bytes=least_bytes
        )
        self.optimizer_bytes = self._traced.variables.optimizer_bytes
        self.uses_model_optimizer = self._traced.variables.uses_model_optimizer

    def estimates(self, batch_sizes: Sequence[int], *, compile_all: bool) -> Iterator[Footprint]:
        """See `StepEstimator.estimates`: by the walk, then by XLA where it compiles the step."""
        for size in sorted(batch_sizes):
            yield self._footprint(size, self._traced.program(size), LIVENESS)
        if self._model.jit_compile:
            for size in sorted(batch_sizes if compile_all else batch_sizes[:_COMPILED_SIZES]):
                program = self._compiled(size)
                if program is None:
                    return
                yield self._footprint(size, program, XLA)

    def _footprint(self, batch_size: int, program: Program, method: str) -> Footprint:
        """The peak for a batch size, by part."""
        peak = liveness.peak(
            replace(program, held_bytes={**self._data, **program.held_bytes}),
            workers=self._workers,
            region_bytes=self._limit_bytes or FIRST_REGION_BYTES,
            least_bytes=self._least_bytes,
        )
        return Footprint(batch_size, peak.bytes_by_part, method, self._relative_error(method), _ABSOLUTE_ERROR_BYTES)

    def _relative_error(self, method: str) -> float:
        if method == LIVENESS and self._model.jit_compile:
            return _FUSED_ERROR
        if self._model.run_eagerly:
            return _EAGER_ERROR
        if not self._on_cpu:
            return max(_GPU_ERROR, _ERRORS[method])
        return _ERRORS[method]

    def _compiled(self, batch_size: int) -> Program | None:
        """Return a compiled step as one operation whose workspace is all but the variables and one batch."""
        total = xla.step_bytes(self._model, self._batch, batch_size)
        if total is None:
            return None
        once = self._traced.held_bytes(batch_size, on_cpu=False)
        temporaries = max(0, total - sum(sum(sizes) for sizes in once.values()))
        held = self._traced.held_bytes(batch_size, on_cpu=self._on_cpu)
        return Program((), (Operation("step", (), (), workspace_bytes=(temporaries,)),), frozenset(), held)
