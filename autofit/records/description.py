"""The properties of a workload before it is trained, and estimates of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autofit.records import DEFAULT_BACKEND
from autofit.records.knobs import FitConfig
from autofit.records.machine import Machine
from autofit.records.places import Place
from autofit.records.trial import Limits
from autofit.records.units import Count, Positive, Ratio, counted

# the part of a footprint for the data: on a CPU, the data's tensors are device memory
DATA_PART = "data"
_FIXED_PARTS = (DATA_PART, "weights", "optimizer")  # the same at any batch size

# the share of estimates for which the errors of the methods were measured
WITHIN_ERROR = 0.95


@dataclass(frozen=True)
class Footprint:
    """Estimated device memory of a train step; nothing is trained.

    `WITHIN_ERROR` of the estimates by a method differ from the measured peak by at most
    `relative_error` (a share of the estimate) or `absolute_error_bytes`, whichever is more
    (measured: see tests/benchmarks/memory.py).
    """

    batch_size: Positive
    # of the peak; `DATA_PART` is the data, which stays in memory between steps
    device_bytes_by_part: Mapping[str, int]
    method: str
    relative_error: Ratio
    absolute_error_bytes: Count = 0

    @property
    def device_bytes(self) -> int:
        return sum(self.device_bytes_by_part.values())

    @property
    def step_bytes(self) -> int:
        """The estimated peak without the data."""
        return self.device_bytes - self.device_bytes_by_part.get(DATA_PART, 0)

    @property
    def fixed_bytes(self) -> int:
        """The part of the peak that is the same at any batch size."""
        return sum(self.device_bytes_by_part.get(part, 0) for part in _FIXED_PARTS)

    @property
    def upper_bytes(self) -> float:
        return self.device_bytes + self.error_bytes(self.device_bytes)

    def error_bytes(self, estimated_bytes: float) -> float:
        """Return the error bound, in bytes, of another estimate by the same method."""
        return max(
            self.relative_error * estimated_bytes, float(self.absolute_error_bytes)
        )


@dataclass(frozen=True)
class GpuEstimate:
    """Estimated device memory of a train step on a model of GPU, which need not be there."""

    gpu: str
    total_bytes: Count
    # what a program gets of it, outside of which are CUDA's context and libraries
    usable_bytes: Count
    footprints: tuple[Footprint, ...]  # by ascending batch size
    # whose estimate, with its error, fits; None if not even the smallest fits
    largest_batch_size: int | None
    problem: str  # why the memory could not be estimated


@dataclass(frozen=True)
class BatchDependence:
    """A part of a program that trains differently on batches of another size.

    A "schedule" counts train steps; `arguments` are the names of its numbers of steps, as far as
    they are known. A "loss" is not a mean over its samples, and a "sum" adds them up. A "method" of
    the user's own may compare samples of a batch.
    """

    kind: Literal["schedule", "normalization", "loss", "sum", "method"]
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """The properties of a workload that are known before anything is trained."""

    input_kind: str
    # each knob that the data takes, with its name in the factory or in `fit`
    knobs: Mapping[str, str]
    sample_count: Count | None
    sample_bytes: Count
    parameter_count: Count
    parameter_bytes: Count
    optimizer_bytes: Count
    jit_compile: bool
    fingerprint: str
    optimizer: str = ""  # the name of its class
    model_takes_batch: bool = False  # whether `build_model` is given the batch size
    required: tuple[str, ...] = ()  # names of knobs without a default
    # the factory's and the model's own values of their knobs
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # as `knobs`, of the validation data
    validation_knobs: Mapping[str, str] = field(default_factory=dict)
    validation_required: tuple[str, ...] = ()
    footprints: tuple[Footprint, ...] = ()  # by ascending batch size
    gpus: tuple[GpuEstimate, ...] = ()  # for those that were asked for by name
    estimate_problem: str | None = None  # the reason, if `footprints` is empty
    # Where to set `gradient_accumulation_steps`: "optimizer" and "optimizer.inner_optimizer" are
    # attributes of the model, "build_model" means an argument of that function. Empty if that
    # function has no such argument and the train step does not use the optimizer passed to
    # `compile`.
    accumulates_by: str = "optimizer"
    # otherwise `sample_count` has a partial last batch as a full one
    counts_last_batch: bool = True
    # arrays in a tuple: 2 for (x, y), 3 with sample weights, 1 for (x,), and 0 for x without a
    # tuple
    batch_parts: int = 2
    # not empty if batches differ in shape; all sizes are then those of the longest batch
    shapes: str = ""
    notices: tuple[str, ...] = ()  # messages to the user
    # names of the user's that run after each batch
    batch_callbacks: tuple[str, ...] = ()
    batch_dependences: tuple[BatchDependence, ...] = ()
    # batches in an update, if the user's own optimizer says so
    accumulation_steps: Positive = 1
    left_out_callbacks: tuple[str, ...] = ()  # those that trials do not run
    epochs: Positive = 1  # of the program's `fit`
    validations_per_epoch: Ratio = 1.0
    processes_hang: bool = False  # whether forked workers cannot make the data
    # host memory of the describing process, after the train step was traced
    process_bytes: Count = 0
    # the only size of batches that the workload takes; None if it takes others
    fixed_batch_size: int | None = None
    # why knobs are not tuned, by their names
    untuned: Mapping[str, str] = field(default_factory=dict)
    mapped_bytes: Count = 0  # of arrays that training reads from files
    tensor_bytes: Count = 0  # to which `fit` copies arrays
    conversion_bytes: Count = 0  # needed in addition while it copies
    # whether a call of several steps holds all of its batches at once, stacked
    stacks_steps: bool = False
    # whether, without a queue, a batch is made only while no step runs
    takes_turns: bool = False
    steps_ahead: Count = 0  # that wait behind the running one, each with its batch
    versions: Mapping[str, str] = field(default_factory=dict)
    # of a script: where it sets each knob, where else it uses the batch size, the arguments of
    # `fit` that count batches and are numbers in it, and its call of `fit`
    places: Mapping[str, Place] = field(default_factory=dict)
    uses: tuple[str, ...] = ()
    literal_counts: Mapping[str, int] = field(default_factory=dict)
    fit_call: str = ""

    @property
    def samples_in_words(self) -> str:  # in an epoch
        return "about " * (not self.counts_last_batch) + counted(
            self.sample_count or 0, "sample"
        )

    @property
    def backend(self) -> str:
        return str(self.versions.get("backend", DEFAULT_BACKEND))


@dataclass(frozen=True)
class EstimateRow:
    """Estimated memory of one batch size.

    The peaks stay below the upper bounds with a probability of 99%. `fits` is true if both bounds
    are within the limits.
    """

    batch_size: int
    device_bytes_by_part: Mapping[str, int]
    host_bytes_by_part: Mapping[str, int]
    device_upper_bytes: int
    host_upper_bytes: int
    fits: bool

    @property
    def device_bytes(self) -> int:
        return sum(self.device_bytes_by_part.values())

    @property
    def host_bytes(self) -> int:
        return sum(self.host_bytes_by_part.values())


@dataclass(frozen=True)
class EstimateRecord:
    """Estimated memory of a workload for several batch sizes, with the other knobs from `config`;
    nothing is trained.
    """

    description: Description
    config: FitConfig
    limits: Limits
    machine: Machine
    device: str
    rows: tuple[EstimateRow, ...]  # empty if GPUs were asked for by name
    # that is expected to fit the limits; None if not even one sample fits
    largest_batch_size: int | None

    @property
    def gpus(self) -> tuple[GpuEstimate, ...]:
        return self.description.gpus
