"""Configs, trials, their measurements and the conditions of these: frozen dataclasses, with units in the field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.records.bounds import Count, Knob, Positive, Rate, Ratio, Seconds
from autofit.records.states import Outcome, Phase, Role, Stage
from autofit.records.units import counted

KNOBS = ("batch_size", "workers", "max_queue_size", "use_multiprocessing", "prefetch_factor")

AUTOTUNE = -1
"""`tf.data.AUTOTUNE`: tf.data itself decides on the parallel calls or the prefetched batches, while it runs."""

AUTOTUNE_BATCHES = 8
"""Batches that `prefetch(AUTOTUNE)` counts as. Its buffer begins with one and doubles whenever it was full and ran empty,
up to half of the free RAM: 2 to 10 batches were ready in training (measured; see tests/trial/test_autotune.py)."""

FEW_UPDATES = 10
"""With fewer updates of the weights per epoch, a batch counts as large for the data."""

INPUT_BOUND_RATIO = 1.2
"""Below this ratio of input to compute rate the pipeline counts as input-bound."""

DEVICE_MEMORY, HOST_MEMORY = "device_memory", "host_memory"
"""Names of the two constraints of a trial, in units of the limit: use / limit - 1, feasible at 0 and below."""

BUSY_SHARE = 0.1
"""Share of the cores above which other processes affect a rate (measured: 0.01 to 0.05 on idle machines)."""

_IDLE_SHARE = 0.25  # of the cores: while this share is idle, no process waits for a core
_RATE_NOISE_FLOOR = 0.015  # relative standard deviation of a rate, however narrow its interval
_USUAL_RATE_NOISE = 0.04  # of a rate without an interval


@dataclass(frozen=True)
class FitConfig:
    """One setting of the knobs; None for a knob that the workload's input does not take.

    `prefetch_factor` is that of a torch `DataLoader`, batches ahead for each worker process; it has no `max_queue_size`.
    """

    batch_size: Positive | None = None
    workers: Knob | None = None
    max_queue_size: Knob | None = None
    use_multiprocessing: bool | None = None
    prefetch_factor: Knob | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FitConfig:
        """Make a config from a mapping by knob; other keys are ignored."""
        return cls(**{knob: values[knob] for knob in KNOBS if knob in values})

    def values(self) -> dict[str, int]:
        """The knobs that are set."""
        return {knob: getattr(self, knob) for knob in KNOBS if getattr(self, knob) is not None}

    @property
    def has_queue(self) -> bool:
        """Whether Keras puts a queue between the workers and the step.

        It does for more than one thread, or for any process; otherwise `workers` 0 and 1 are the same and
        `max_queue_size` does nothing (Keras 3.15, `PyDatasetAdapter`). Data that takes only a queue has one. With AUTOTUNE,
        tf.data has one.
        """
        if AUTOTUNE in (self.workers, self.max_queue_size):
            return True
        if self.workers is None:
            return self.max_queue_size is not None or bool(self.use_multiprocessing)
        return self.workers > 1 or (self.workers > 0 and bool(self.use_multiprocessing))

    @property
    def queue_batches(self) -> int:
        """Batches in a full queue; 0 without one."""
        if not self.has_queue:
            return 0
        if self.prefetch_factor is not None:
            return self.prefetch_factor * (self.workers or 0)
        return AUTOTUNE_BATCHES if self.max_queue_size == AUTOTUNE else self.max_queue_size or 0

    @property
    def queue_in_words(self) -> str | None:
        """The batches of a full queue; None without one, or if its size is unknown."""
        if not self.has_queue or (self.max_queue_size is None and self.prefetch_factor is None):
            return None
        return value_in_words(AUTOTUNE if self.max_queue_size == AUTOTUNE else self.queue_batches)

    def worker_count(self, cores: int) -> int:
        """Workers beside the training thread; 1 without a queue. AUTOTUNE counts as one thread per core."""
        if not self.has_queue:
            return 1
        return cores if self.workers == AUTOTUNE else self.workers or 1

    def __str__(self) -> str:
        parts = [] if self.batch_size is None else [f"batch {self.batch_size}"]
        if self.workers == AUTOTUNE:
            parts.append("auto threads")
        elif self.workers is not None:
            parts.append(counted(self.workers, "process" if self.use_multiprocessing else "thread"))
        if self.prefetch_factor is not None and self.has_queue:
            parts.append(f"prefetch {self.prefetch_factor}")
        if self.max_queue_size is not None and self.has_queue:
            parts.append(f"queue {value_in_words(self.max_queue_size)}")
        return ", ".join(parts) or "no knobs"


def value_in_words(value: int) -> str:
    """The value of a knob; AUTOTUNE is "auto"."""
    return "auto" if value == AUTOTUNE else str(value)


KERAS_DEFAULTS = FitConfig(batch_size=32, workers=1, max_queue_size=10, use_multiprocessing=False)
"""The defaults of `Model.fit` and `PyDataset.__init__` (Keras 3.15)."""


@dataclass(frozen=True)
class Limits:
    """What a trial may use, in bytes; `device_bytes` is None if there is no device limit."""

    device_bytes: Positive | None
    host_bytes: Positive


@dataclass(frozen=True)
class Evidence:
    """Why a trial has its outcome, and the `phase` in which it ended.

    `hung` is set if a TIMEOUT was ended because its processes were idle, `outside_pool` if a DEVICE_OOM came from a library
    that found no memory outside the limit, `server_lost` if it CRASHED together with the trial server.
    """

    reason: str
    phase: Phase | None = None
    exit_code: int | None = None
    signal: str | None = None
    last_host_bytes: int | None = None
    log_tail: tuple[str, ...] = ()
    hung: bool = False
    outside_pool: bool = False
    server_lost: bool = False


@dataclass(frozen=True)
class Conditions:
    """Conditions while a rate was timed, as means over that time; None if the system or the driver reports no figure.

    `cores` are those that this process may use, `other_cores` the number of them that other processes used, including the
    host of a virtual machine, and `idle_cores` the number that nothing used. `clock_mhz` is the clock of a GPU's
    multiprocessors, and `throttles` are the reasons why it was not higher.
    """

    cores: Positive
    other_cores: Ratio | None = None
    idle_cores: Ratio | None = None
    clock_mhz: Count | None = None
    throttles: tuple[str, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used cores that the trial or its input pipeline may have waited for."""
        if self.other_cores is None or self.idle_cores is None:
            return False
        return self.other_cores >= BUSY_SHARE * self.cores and self.idle_cores < _IDLE_SHARE * self.cores

    @property
    def other_work(self) -> str:
        """The other work, as text for people."""
        return f"other processes used {self.other_cores or 0:.1f} of {self.cores} cores"


@dataclass(frozen=True)
class Measurement:
    """What was measured in one trial: the record that its process sends, that is stored, and that is saved in results.

    `samples_per_second` is the end-to-end rate of `fit`; `compute_samples_per_second` that of the same step on one cached
    batch; `input_samples_per_second` that of the input pipeline alone. `spread` is the half-width of the 95 % confidence
    interval of the end-to-end rate, relative to it. Peaks are None if they cannot be read; those by phase include the
    input pipeline alone, the total peaks do not. `driver_peak_bytes` is the highest use that the driver counted for the
    trial's processes, context and libraries included; `allocator_fallbacks` counts the algorithms that the backend gave up
    because their workspace did not fit, and how often torch's allocator gave back what it kept to find room.
    `queued_batches` is the number of batches ready or in the making when the queue was full. `started_at` is in seconds
    since 1970 (UTC); `phase_seconds` is the time spent in each phase; `conditions` are those in which the rate was timed.
    """

    outcome: Outcome
    evidence: Evidence
    seconds: Seconds = 0.0
    samples_per_second: Rate | None = None
    spread: Ratio | None = None
    step_seconds: Seconds | None = None
    steps: Count = 0
    compute_samples_per_second: Rate | None = None
    input_samples_per_second: Rate | None = None
    device_peak_bytes: Count | None = None
    host_peak_bytes: Count | None = None
    device_peak_bytes_by_phase: Mapping[Phase, int] = field(default_factory=dict)
    host_peak_bytes_by_phase: Mapping[Phase, int] = field(default_factory=dict)
    driver_peak_bytes: Count | None = None
    allocator_fallbacks: Count = 0
    queued_batches: int | None = None
    started_at: Seconds | None = None
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    conditions: Conditions | None = None
    traceback: str | None = None

    @property
    def rate_noise(self) -> float:
        """Relative standard deviation of `samples_per_second`: half its interval, but no less than runs differ by."""
        return _USUAL_RATE_NOISE if self.spread is None else max(_RATE_NOISE_FLOOR, self.spread / 2)


@dataclass(frozen=True)
class Trial:
    """One `FitConfig` tried in one process.

    `why` is the reason of the search for trying it. `number` counts the stored trials of a tune from 0; None for a trial
    that is not stored by itself. `validation_batch_size` is the batch size of the validation; None for the config's own.
    """

    config: FitConfig
    measurement: Measurement
    why: str = ""
    stage: Stage = Stage.SEARCH
    number: int | None = None
    validation_batch_size: Positive | None = None

    def fits(self, limits: Limits) -> bool:
        """Whether the trial finished within `limits`."""
        measurement = self.measurement
        return (
            measurement.outcome is Outcome.OK
            and (limits.device_bytes is None or (measurement.device_peak_bytes or 0) <= limits.device_bytes)
            and (measurement.host_peak_bytes or 0) <= limits.host_bytes
        )


@dataclass(frozen=True)
class TrialSpec:
    """Everything that a trial's process needs to know.

    A describing trial uses the factory's own default, or else Keras's, for a knob of `config` that is None. It estimates
    the memory of `batch_sizes`; if XLA compiles the step, of the first two only, unless `compile_all`.

    A measuring trial times the end-to-end rate for at most `measure_seconds`. It ends early if its rate is clearly below
    `rate_to_beat`, and does not repeat a measurement that is given: the step alone with `compute_samples_per_second`, the
    pipeline alone with `input_samples_per_second`. If `memory_is_read` and the input is slower than the step, it does not
    wait until the queue is full.

    A confirming trial times for all of `measure_seconds`. It gets both rates to leave out the batches of the full queue,
    which would inflate the rate. If `validates`, it validates in batches of `validation_batch_size`, or of the config's own
    size if that is None. The optimizer accumulates gradients up to `effective_batch_size` samples.
    """

    role: Role
    config: FitConfig
    limits: Limits
    deadline_seconds: float
    measure_seconds: float = 3.0
    batch_sizes: tuple[int, ...] = ()
    compile_all: bool = False
    rate_to_beat: float | None = None
    compute_samples_per_second: float | None = None
    input_samples_per_second: float | None = None
    effective_batch_size: int | None = None
    validates: bool = True
    validation_batch_size: int | None = None
    memory_is_read: bool = False
