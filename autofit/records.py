"""Every value that flows through autofit: frozen dataclasses, with units in the field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

KNOBS = ("batch_size", "workers", "max_queue_size", "use_multiprocessing")
RESULT_VERSION = 1

INPUT_BOUND = 1.2
"""A pipeline that makes less than so many times what the step alone takes may not keep up with it."""

DEVICE_MEMORY, HOST_MEMORY = "device_memory", "host_memory"
"""Names of the two constraints that each trial carries, in units of the limit: use / limit - 1, feasible at 0 and below."""


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
        `max_queue_size` does nothing (Keras 3.15, `PyDatasetAdapter`).
        """
        workers = 1 if self.workers is None else self.workers
        return workers > 1 or (workers > 0 and bool(self.use_multiprocessing))

    def __str__(self) -> str:
        parts = [] if self.batch_size is None else [f"batch {self.batch_size}"]
        if self.workers is not None:
            kind = "process" if self.use_multiprocessing else "thread"
            plural = "" if self.workers == 1 else "es" if self.use_multiprocessing else "s"
            parts.append(f"{self.workers} {kind}{plural}")
        if self.max_queue_size is not None and (self.workers is None or self.has_queue):
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
    confidence interval of the end-to-end rate, relative to it. Peaks are None where they cannot be read.
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
    traceback: str | None = None


@dataclass(frozen=True)
class Trial:
    """One `FitConfig` tried in one process."""

    config: FitConfig
    measurement: Measurement

    def fits(self, limits: Limits) -> bool:
        """Whether the trial ran to its end within `limits`."""
        m = self.measurement
        return (
            m.outcome is Outcome.OK
            and (limits.device_bytes is None or (m.device_peak_bytes or 0) <= limits.device_bytes)
            and (m.host_peak_bytes or 0) <= limits.host_bytes
        )


@dataclass(frozen=True)
class Description:
    """What is known of a workload before anything is trained."""

    input_kind: str
    knobs: tuple[str, ...]
    sample_count: int | None
    sample_bytes: int
    parameter_count: int
    parameter_bytes: int
    optimizer_bytes: int
    jit_compile: bool
    fingerprint: str
    validation_knobs: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """One accelerator, as the driver reports it; `index` is the driver's, `uuid` names it for good."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """What a host has: memory is what this process may use (the smaller of RAM and the cgroup's limit)."""

    system: str
    python: str
    processor: str
    cores: int
    memory_bytes: int
    available_bytes: int
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class TrialSpec:
    """Everything a trial's process is told.

    `role` is describe, measure or confirm. `measure_seconds` is how long the end-to-end rate is taken, at the most in a
    measuring trial, in full in a confirming one; for the latter `input_bound` says whether the batches that a full queue
    holds would make it look faster than it is.
    """

    role: str
    config: FitConfig
    limits: Limits
    deadline_seconds: float
    measure_seconds: float = 3.0
    input_bound: bool = True


@dataclass(frozen=True)
class Speedup:
    """How much faster the chosen config is than the baseline.

    `ratio` is the geometric mean of the paired ratios, `low` and `high` the ends of its 95 % confidence interval. All
    three are None when the baseline did not run to its end; `baseline_outcome` says how it ended.
    """

    baseline: FitConfig
    baseline_outcome: Outcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0


@dataclass(frozen=True)
class Recommendation:
    """The chosen config, with the figures of the runs that confirmed it."""

    config: FitConfig
    samples_per_second: float
    spread: float | None
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    speedup: Speedup
    confirmed: bool


@dataclass(frozen=True)
class FrontierPoint:
    """For one setting of the other knobs (`config.batch_size` is None): the largest batch that fitted, the smallest that
    did not.
    """

    config: FitConfig
    largest_batch_size: int | None
    smallest_oom_batch_size: int | None


@dataclass(frozen=True)
class Usage:
    """How the user's functions are written in code: import lines, and expressions for the model and the data.

    `data` and `validation` name a factory, which is called with the kwargs here and the knobs that it takes, or stand for
    the arrays themselves.
    """

    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_is_arrays: bool = False
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_is_arrays: bool = False


@dataclass(frozen=True)
class TuningRecord:
    """One tune, whole: the choice, its proof, and every trial."""

    config: FitConfig
    fit_kwargs: Mapping[str, Any]
    data_kwargs: Mapping[str, Any]
    samples_per_second: float
    spread: float | None
    speedup: Speedup
    confirmed: bool
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    limits: Limits
    bottleneck: str
    compute_samples_per_second: float | None
    input_samples_per_second: float | None
    stop_reason: str
    machine: Machine
    device: str
    description: Description
    frontier: tuple[FrontierPoint, ...]
    trials: tuple[Trial, ...]
    seconds: float
    usage: Usage
    version: int = RESULT_VERSION

    @property
    def headroom(self) -> dict[str, float | None]:
        """The share of each limit that the chosen config left free, from 0 to 1; None without a limit or a reading."""
        device = _share_left(self.device_peak_bytes, self.limits.device_bytes)
        return {"device": device, "host": _share_left(self.host_peak_bytes, self.limits.host_bytes)}


def _share_left(peak_bytes: int | None, limit_bytes: int | None) -> float | None:
    return None if peak_bytes is None or limit_bytes is None else 1 - peak_bytes / limit_bytes
