"""Every value that flows through autofit: frozen dataclasses, with units in the field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from autofit.records.units import counted

KNOBS = ("batch_size", "workers", "max_queue_size", "use_multiprocessing")

INPUT_BOUND = 1.2
"""A pipeline that makes less than so many times what the step alone takes may not keep up with it."""

INPUT_ALONE = "input pipeline alone"
"""The phase of a trial in which nothing is trained: what it holds is not what the user's run will hold."""

DEVICE_MEMORY, HOST_MEMORY = "device_memory", "host_memory"
"""Names of the two constraints that each trial carries, in units of the limit: use / limit - 1, feasible at 0 and below."""

_LEAST_RATE_NOISE, _USUAL_RATE_NOISE = 0.015, 0.04  # relative: of a rate however narrow its interval, and without one


@dataclass(frozen=True)
class FitConfig:
    """One setting of the knobs; None stands for a knob that the workload's input does not take."""

    batch_size: int | None = None
    workers: int | None = None
    max_queue_size: int | None = None
    use_multiprocessing: bool | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FitConfig:
        """The config that a mapping from knobs gives; what is not a knob is passed over."""
        return cls(**{knob: values[knob] for knob in KNOBS if knob in values})

    def values(self) -> dict[str, int]:
        """The knobs that are set."""
        return {knob: getattr(self, knob) for knob in KNOBS if getattr(self, knob) is not None}

    @property
    def has_queue(self) -> bool:
        """Whether Keras puts a queue between the workers and the step.

        It does for more than one thread, or for any process; otherwise `workers` 0 and 1 are the same and
        `max_queue_size` does nothing (Keras 3.15, `PyDatasetAdapter`). Where only a queue can be set, there is one.
        """
        if self.workers is None:
            return self.max_queue_size is not None or bool(self.use_multiprocessing)
        return self.workers > 1 or (self.workers > 0 and bool(self.use_multiprocessing))

    def __str__(self) -> str:
        parts = [] if self.batch_size is None else [f"batch {self.batch_size}"]
        if self.workers is not None:
            parts.append(counted(self.workers, "process" if self.use_multiprocessing else "thread"))
        if self.max_queue_size is not None and self.has_queue:
            parts.append(f"queue {self.max_queue_size}")
        return ", ".join(parts) or "no knobs"


class Outcome(str, Enum):
    """How a trial ended."""

    OK = "ok"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    ERROR = "error"

    @property
    def is_oom(self) -> bool:
        """Whether the trial says something about the feasible frontier."""
        return self in (Outcome.DEVICE_OOM, Outcome.HOST_OOM)


@dataclass(frozen=True)
class Limits:
    """What a trial may use, in bytes; `device_bytes` is None where no device limit applies."""

    device_bytes: int | None
    host_bytes: int


@dataclass(frozen=True)
class Evidence:
    """Why a trial was given its outcome."""

    reason: str
    phase: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    last_host_bytes: int | None = None
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """What one trial reports.

    `samples_per_second` is the end-to-end rate of `fit`; `compute_samples_per_second` that of the same step on one
    cached batch; `input_samples_per_second` that of the input pipeline alone. `spread` is the half-width of the 95 %
    confidence interval of the end-to-end rate, relative to it. Peaks are None where they cannot be read. The peaks by
    phase say where they were; that of the input pipeline alone, which no user's run has, is not in the peak as a whole.
    `driver_peak_bytes` is the most that the driver counted for the trial's processes, context and libraries included;
    `allocator_fallbacks` counts algorithms given up for want of memory, the sign of the slow zone below the limit.
    `queued_batches` is how many batches were ready or in the making when the queue was full. `storage_bytes_per_second` is
    what was read from storage during the run that was timed: near 0 where the page cache had it. `started_at` is when the
    trial began, in seconds since 1970 (UTC), and `phase_seconds` where its time went.
    """

    outcome: Outcome
    evidence: Evidence
    seconds: float = 0.0
    samples_per_second: float | None = None
    spread: float | None = None
    step_seconds: float | None = None
    steps: int = 0
    compute_samples_per_second: float | None = None
    input_samples_per_second: float | None = None
    device_peak_bytes: int | None = None
    host_peak_bytes: int | None = None
    device_peak_bytes_by_phase: Mapping[str, int] = field(default_factory=dict)
    host_peak_bytes_by_phase: Mapping[str, int] = field(default_factory=dict)
    driver_peak_bytes: int | None = None
    allocator_fallbacks: int = 0
    queued_batches: int | None = None
    storage_bytes_per_second: float | None = None
    started_at: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    traceback: str | None = None

    @property
    def rate_noise(self) -> float:
        """The relative standard deviation of `samples_per_second`: half the interval, but no less than runs differ by."""
        return _USUAL_RATE_NOISE if self.spread is None else max(_LEAST_RATE_NOISE, self.spread / 2)


@dataclass(frozen=True)
class Trial:
    """One `FitConfig` tried in one process; `why` it was, in words, where the search chose it."""

    config: FitConfig
    measurement: Measurement
    why: str = ""

    def fits(self, limits: Limits) -> bool:
        """Whether the trial ran to its end within `limits`."""
        m = self.measurement
        return (
            m.outcome is Outcome.OK
            and (limits.device_bytes is None or (m.device_peak_bytes or 0) <= limits.device_bytes)
            and (m.host_peak_bytes or 0) <= limits.host_bytes
        )


@dataclass(frozen=True)
class Footprint:
    """Device memory that a train step of so many samples is estimated to hold, nothing trained.

    `device_bytes_by_part` are what the peak is made of; `method` says how they were had; 95 % of such estimates are
    within `relative_error` of what is measured (measured: see tests/benchmarks/memory.py).
    """

    batch_size: int
    device_bytes_by_part: Mapping[str, int]
    method: str
    relative_error: float

    @property
    def device_bytes(self) -> int:
        """The estimated peak."""
        return sum(self.device_bytes_by_part.values())


@dataclass(frozen=True)
class Description:
    """What is known of a workload before anything is trained.

    `knobs` are those that the data takes, each with the name under which it takes it, in the factory or in `fit`; of these
    names the `required` have no default. `validation_knobs` and `validation_required` are those of the validation data.
    `process_bytes` is what the process that described it used of host memory, model and data opened, step traced;
    `footprints` are estimates of device memory, by ascending batch size, empty where the step could not be traced; why is
    then in `estimate_problem`.
    `accumulates_by` is where `gradient_accumulation_steps` is told: an attribute of the model's "optimizer" or
    "optimizer.inner_optimizer", or "build_model", as an argument. `batch_parts` is 2 for (x, y), 3 with sample weights.
    `notices` are what the user should know of the data; `processes_hang` says that it cannot be made in forked workers.
    `keras` is the module that the model is made with, keras or tf_keras.
    `shapes` says, where batches differ in shape, what the longest was found among; sizes are then those of the longest.
    """

    input_kind: str
    knobs: Mapping[str, str]
    sample_count: int | None
    sample_bytes: int
    parameter_count: int
    parameter_bytes: int
    optimizer_bytes: int
    jit_compile: bool
    fingerprint: str
    required: tuple[str, ...] = ()
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
    process_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialSpec:
    """Everything a trial's process is told.

    `role` is describe, measure or confirm. `measure_seconds` is how long the end-to-end rate is taken, at the most in a
    measuring trial, in full in a confirming one; for the latter `input_bound` says whether the batches that a full queue
    holds would make it look faster than it is. A describing trial estimates the memory of `batch_sizes`, of a step that
    XLA compiles that of the first two alone unless `compile_all`. A measuring trial whose rate is surely below
    `rate_to_beat` ends early; it takes the step's rate alone from `compute_samples_per_second` where that is known. The
    optimizer accumulates gradients over so many batches that they add up to `effective_batch_size`. A confirming trial
    validates on batches of `validation_batch_size`, of the config's own size where that is None.
    """

    role: str
    config: FitConfig
    limits: Limits
    deadline_seconds: float
    measure_seconds: float = 3.0
    input_bound: bool = True
    batch_sizes: tuple[int, ...] = ()
    compile_all: bool = False
    rate_to_beat: float | None = None
    compute_samples_per_second: float | None = None
    effective_batch_size: int | None = None
    validation_batch_size: int | None = None
