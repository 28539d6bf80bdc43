"""The properties of a workload before it is trained, with estimates of its device memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.records.bounds import Count, Positive, Ratio

DATA_PART = "data"
"""The part of a footprint that the data takes at any batch size: on a CPU, its tensors are device memory."""

TORCH_COMPILE = "torch.compile"
"""The compiler of the step on torch."""


@dataclass(frozen=True)
class Footprint:
    """Estimated device memory of a train step, nothing trained.

    `device_bytes_by_part` are the parts of the peak, `DATA_PART` that of data which outlives the steps; `method` is the way
    of estimating; 95 % of such estimates are within `relative_error` or `absolute_error_bytes` of the measured peak,
    whichever is more (measured: see tests/benchmarks/memory.py).
    """

    batch_size: Positive
    device_bytes_by_part: Mapping[str, int]
    method: str
    relative_error: Ratio
    absolute_error_bytes: Count = 0

    @property
    def device_bytes(self) -> int:
        """The estimated peak."""
        return sum(self.device_bytes_by_part.values())

    @property
    def step_bytes(self) -> int:
        """The peak without the data."""
        return self.device_bytes - self.device_bytes_by_part.get(DATA_PART, 0)

    def error_bytes(self, estimated_bytes: float) -> float:
        """The error bound of such an estimate of `estimated_bytes`."""
        return max(self.relative_error * estimated_bytes, float(self.absolute_error_bytes))


@dataclass(frozen=True)
class Description:
    """The properties of a workload that are read before anything is trained.

    `knobs` maps each knob that the data takes to its name in the factory or in `fit`; the `required` ones of these names
    have no default, and `defaults` are the values that the factory itself gives its knobs. `validation_knobs` and
    `validation_required` are the same for the validation data. `process_bytes` is the host memory of the describing
    process, with the model and the data open and the step traced.

    `footprints` are estimates of device memory by ascending batch size; if they are empty, `estimate_problem` is the
    reason. `accumulates_by` is where to set `gradient_accumulation_steps`: the attribute "optimizer" or
    "optimizer.inner_optimizer" of the model, or "build_model" for an argument of it; empty if the train step uses other
    optimizers. `batch_parts` is 2 for arrays (x, y), 3 with sample weights, 1 for (x,), 0 for x alone. `notices` are for
    the user. `processes_hang` is set if forked workers cannot make the data. `keras` is the module of the model, keras or
    tf_keras.

    `shapes` is set if batches differ in shape; sizes are then those of the longest batch. `fixed_batch_size` is set if the
    workload takes batches of one size only, with the reason beside it. Arrays of `mapped_bytes` are read from files while
    training. `fit` copies arrays to tensors of `tensor_bytes`, and needs `conversion_bytes` more while it copies. If
    `takes_turns` is set and there is no queue, a batch is made only while no step runs. `steps_ahead` is the number of
    further steps in flight, each with its batch.
    """

    input_kind: str
    knobs: Mapping[str, str]
    sample_count: Count | None
    sample_bytes: Count
    parameter_count: Count
    parameter_bytes: Count
    optimizer_bytes: Count
    jit_compile: bool
    fingerprint: str
    required: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)
    validation_knobs: Mapping[str, str] = field(default_factory=dict)
    validation_required: tuple[str, ...] = ()
    footprints: tuple[Footprint, ...] = ()
    estimate_problem: str | None = None
    accumulates_by: str = "optimizer"
    batch_parts: int = 2
    keras: str = "keras"
    shapes: str = ""
    notices: tuple[str, ...] = ()
    processes_hang: bool = False
    process_bytes: Count = 0
    fixed_batch_size: int | None = None
    fixed_batch_size_reason: str = ""
    mapped_bytes: Count = 0
    tensor_bytes: Count = 0
    conversion_bytes: Count = 0
    takes_turns: bool = False
    steps_ahead: Count = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiler(self) -> str:
        """The compiler of the step, "XLA" or "torch.compile"; empty if the step is not compiled."""
        if not self.jit_compile:
            return ""
        return TORCH_COMPILE if self.versions.get("backend") == "torch" else "XLA"
