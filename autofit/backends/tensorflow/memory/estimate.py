"""What a train step will hold in device memory, for any batch size, nothing run (loads TensorFlow)."""

from __future__ import annotations

from typing import Any

from autofit.backends.tensorflow.memory import liveness, xla
from autofit.backends.tensorflow.memory.allocator import FIRST_REGION_BYTES
from autofit.backends.tensorflow.memory.graph import TracedStep, held_bytes
from autofit.backends.tensorflow.memory.liveness import Peak
from autofit.backends.tensorflow.memory.program import Operation, Program
from autofit.records.trial import Footprint

LIVENESS, XLA = "liveness walk over the traced step", "XLA buffer assignment"

_ERRORS = {LIVENESS: 0.2, XLA: 0.13}  # 95 % are within (measured: tests/benchmarks/memory.py)
_ONEDNN_ERROR = 0.4  # oneDNN's kernels decide when they run what they hold (measured: tests/benchmarks/memory.py --onednn)
_GPU_ERROR = 0.35  # kernels of a GPU take workspaces that are not known before they run; not measured
_WALKED_OPERATIONS = 60_000  # over all steps: a second or two


class StepFootprint:
    """Device memory of a model's train step: by XLA's buffer assignment where XLA will compile it, else by liveness walk.

    Args:
        model: built and compiled, its optimizer built.
        batch: arrays, (x, y) or (x, y, sample_weight), first axis the samples.
        on_cpu: whether the step will run on the CPU.
        onednn: whether TensorFlow uses oneDNN's kernels there.
        workers: operations that TensorFlow runs at the same time.
        limit_bytes: the device's limit; a GPU's allocator takes all of it at once.

    Raises:
        Exception: what the model's own code raises while it is traced.
    """

    def __init__(
        self, model: Any, batch: Any, *, on_cpu: bool, onednn: bool, workers: int, limit_bytes: int | None
    ) -> None:
        self._model, self._batch, self._on_cpu, self._workers = model, batch, on_cpu, workers
        self._onednn = on_cpu and onednn
        self._region_bytes = FIRST_REGION_BYTES if on_cpu or limit_bytes is None else limit_bytes
        self._traced: TracedStep | None = None

    def estimate(self, batch_size: int) -> Footprint:
        """The peak for so many samples, by part."""
        program, method = self._compiled(batch_size) if self._model.jit_compile else None, XLA
        if program is None:
            program, method = self._read(batch_size), LIVENESS
        steps = max(4, min(liveness.STEPS, _WALKED_OPERATIONS // max(1, len(program.operations))))
        found = liveness.peak(program, workers=self._workers, steps=steps, region_bytes=self._region_bytes)
        return Footprint(batch_size, _with_building(found, program), method, self._relative_error(method))

    def _relative_error(self, method: str) -> float:
        if not self._on_cpu:
            return max(_GPU_ERROR, _ERRORS[method])
        return max(_ONEDNN_ERROR, _ERRORS[method]) if self._onednn and method == LIVENESS else _ERRORS[method]

    def _read(self, batch_size: int) -> Program:
        if self._traced is None:
            self._traced = TracedStep(self._model, self._batch, on_cpu=self._on_cpu, onednn=self._onednn)
        return self._traced.program(batch_size)

    def _compiled(self, batch_size: int) -> Program | None:
        """A compiled step is one operation: beside the variables and one batch, all is in one buffer."""
        total = xla.step_bytes(self._model, self._batch, batch_size)
        if total is None:
            return None
        once = held_bytes(self._model, self._batch, batch_size, on_cpu=False)
        temporaries = max(0, total - sum(sum(sizes) for sizes in once.values()))
        held = held_bytes(self._model, self._batch, batch_size, on_cpu=self._on_cpu)
        return Program((), (Operation("step", (), (), workspace_bytes=(temporaries,)),), frozenset(), held)


def _with_building(found: Peak, program: Program) -> dict[str, int]:
    """The step's peak by part, or that of building the model if it is higher: an initial value is held twice more."""
    weights = program.held_bytes["weights"]
    more = max(0, sum(weights) + 2 * max(weights, default=0) - found.total_bytes)
    return {**found.bytes_by_part, "temporaries": found.bytes_by_part["temporaries"] + more}
