"""The properties of a workload before it is trained, and estimates of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.records.bounds import Count, Positive, Ratio
from autofit.records.machine import Machine
from autofit.records.trial import FitConfig, Limits

DATA_PART = "data"
"""The part of a footprint that the data takes at any batch size: on a CPU, tensors of the data are device memory."""

TORCH_COMPILE = "torch.compile"
"""The compiler of the step on torch."""


@dataclass(frozen=True)
class Footprint:
    """Estimated device memory of a train step; nothing is trained.

    `device_bytes_by_part` are the parts of the peak; `DATA_PART` is the data that outlives the steps. 95 % of the estimates
    by this `method` are within `relative_error` or `absolute_error_bytes` of the measured peak, whichever is more
    (measured: see tests/benchmarks/memory.py).
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
        """The error bound, in bytes, of an estimate of `estimated_bytes` by this method."""
        return max(self.relative_error * estimated_bytes, float(self.absolute_error_bytes))


@dataclass(frozen=True)
class Description:
    """The properties of a workload that are read before anything is trained.

    `knobs` maps each knob that the data takes to its name in the factory or in `fit`. The names in `required` have no
    default; `defaults` are the factory's own values of its knobs. `validation_knobs` and `validation_required` are the same
    for the validation data. `process_bytes` is the host memory of the describing process, with the model and the data open
    and the step traced.

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


@dataclass(frozen=True)
class EstimateRow:
    """Estimated memory of one batch size.

    The upper bounds hold with 99 % probability; `fits` says whether both are within the limits.
    """

    batch_size: int
    device_bytes_by_part: Mapping[str, int]
    host_bytes_by_part: Mapping[str, int]
    device_upper_bytes: int
    host_upper_bytes: int
    fits: bool

    @property
    def device_bytes(self) -> int:
        """Total device memory."""
        return sum(self.device_bytes_by_part.values())

    @property
    def host_bytes(self) -> int:
        """Total host memory."""
        return sum(self.host_bytes_by_part.values())


@dataclass(frozen=True)
class Estimate:
    """Estimated memory of a workload by batch size, under the other knobs of `config`; nothing is trained.

    `largest_batch_size` is the largest that fits the limits; None if a batch of one sample does not.
    """

    description: Description
    config: FitConfig
    limits: Limits
    machine: Machine
    device: str
    rows: tuple[EstimateRow, ...]
    largest_batch_size: int | None

    @property
    def method(self) -> str:
        """The method of the device memory estimate."""
        return self.description.footprints[0].method

    @property
    def relative_error(self) -> float:
        """95 % of such estimates of device memory are within this share of the measured peak, or `absolute_error_bytes`."""
        return self.description.footprints[0].relative_error

    @property
    def absolute_error_bytes(self) -> int:
        """The least error bound of such an estimate in bytes, which governs for small programs."""
        return self.description.footprints[0].absolute_error_bytes
