"""What is known of a workload before it is trained: its properties, and estimates of its device memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.records.bounds import Count, Positive, Ratio

DATA_PART = "data"
"""The part of a footprint that the data itself takes, whatever the batch size: on a CPU, its tensors are device memory."""

TORCH_COMPILE = "torch.compile"
"""What compiles the step on torch, where something does."""


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
        """How far such an estimate of `estimated_bytes` may be off."""
        return max(self.relative_error * estimated_bytes, float(self.absolute_error_bytes))


@dataclass(frozen=True)
class Description:
    """The properties of a workload that are read before anything is trained.

    `knobs` are those that the data takes, each with its name there, in the factory or in `fit`; the `required` among
    these names have no default; `defaults` are the values that the factory gives its knobs itself. `validation_knobs` and
    `validation_required` are those of the validation data. `process_bytes` is the host memory of the describing process,
    with model and data open and the step traced. `footprints` are estimates of device memory by ascending batch size;
    empty where the step could not be traced, for the reason in `estimate_problem`. `accumulates_by` is where to set
    `gradient_accumulation_steps`: an attribute of the model's "optimizer" or "optimizer.inner_optimizer", or
    "build_model", as an argument; empty where the train step uses other optimizers. `batch_parts` is that of arrays: 2
    for (x, y), 3 with sample weights, 1 for (x,), 0 for x alone. `notices` are for the user; `processes_hang` is set
    where forked workers cannot make the data. `keras` is the module that the model is made with, keras or tf_keras.
    `shapes` is set where batches differ in shape: sizes are then those of the longest batch. `fixed_batch_size` is set
    where the workload takes batches of one size only, for the reason beside it. Arrays of `mapped_bytes` are read from
    files while training; `fit` copies arrays to tensors of `tensor_bytes`, and needs `conversion_bytes` more meanwhile.
    With `takes_turns`, a batch is made only while no step runs where there is no queue. `steps_ahead` are further steps
    that are under way at once, each with its batch.
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
        """What compiles the step, "XLA" or "torch.compile"; empty where nothing does."""
        if not self.jit_compile:
            return ""
        return TORCH_COMPILE if self.versions.get("backend") == "torch" else "XLA"
