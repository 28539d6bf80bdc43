"""Trials, their measurements and conditions: frozen dataclasses with units in the field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autofit.records import confidence
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase, Role, Stage
from autofit.records.units import Count, Positive, Rate, Ratio, Seconds

# the number of updates of the weights per epoch below which a batch size counts as large for the
# data
FEW_UPDATES = 10
# the ratio of input rate to compute rate below which training counts as limited by its input
INPUT_BOUND_RATIO = 1.2

# names of the two constraints of a trial: each is the peak divided by the limit, minus one; it is
# met at 0 or below
DEVICE_MEMORY, HOST_MEMORY = "device_memory", "host_memory"

# of the cores; other processes that use more affect a rate (measured: 0.01 to 0.05 on idle
# machines)
BUSY_SHARE = 0.1
# share of the cores: if at least this share is idle, no process waits for a core
_IDLE_SHARE = 0.25
# lowest relative standard deviation of a rate, even if its interval is narrower
_RATE_NOISE_FLOOR = 0.015
# relative standard deviation assumed for a rate without an interval
_USUAL_RATE_NOISE = 0.04


@dataclass(frozen=True)
class Limits:
    """The memory that a trial may use, in bytes; `device_bytes` is None if there is no device
    limit.

    Example:
        >>> autofit.Limits(device_bytes=None, host_bytes=6 * 2**30).allow(0, 7 * 2**30)
        False
    """

    device_bytes: Positive | None
    host_bytes: Positive

    def allow(self, device_bytes: int, host_bytes: int) -> bool:
        fits_device = self.device_bytes is None or device_bytes <= self.device_bytes
        return fits_device and host_bytes <= self.host_bytes


@dataclass(frozen=True)
class Evidence:
    """The reason for a trial's outcome, and the `phase` in which the trial ended."""

    reason: str
    phase: Phase | None = None
    exit_code: int | None = None
    signal: str | None = None
    last_host_bytes: Count | None = None  # the last reading of its host memory
    log_tail: tuple[str, ...] = ()
    # whether a TIMEOUT was ended early because its processes were idle
    hung: bool = False
    # whether a DEVICE_OOM is of a library that allocates memory outside the limit
    outside_pool: bool = False
    # whether the trial CRASHED because the trial server ended
    server_lost: bool = False


@dataclass(frozen=True)
class Conditions:
    """The conditions while a rate was timed, as means; None for what is not reported."""

    cores: Positive  # that this process may use
    # the number of them that other processes used, with the host of a virtual machine
    other_cores: Ratio | None = None
    idle_cores: Ratio | None = None  # the number that no process used
    throttles: tuple[str, ...] = ()  # the reasons why a GPU's clock was not higher

    @property
    def is_disturbed(self) -> bool:
        """Whether the trial or its data may have waited for cores that other processes used."""
        if self.other_cores is None or self.idle_cores is None:
            return False
        is_idle = self.idle_cores >= _IDLE_SHARE * self.cores
        return self.other_cores >= BUSY_SHARE * self.cores and not is_idle

    @property
    def other_work(self) -> str:
        return f"other processes used {self.other_cores or 0:.1f} of {self.cores} cores"


@dataclass(frozen=True)
class Measurement:
    """The measurement of one trial, as its process sends it and as it is stored and saved.

    `samples_per_second` is the end-to-end rate of `fit`: that of epochs of `epoch_samples`, each of
    which takes `epoch_gap_seconds` longer than steady training, at `steady_samples_per_second`. If
    the gap was not read, it is None, `samples_per_second` is the steady rate, and
    `epoch_gap_unread` is the reason, or "" if the trial was not asked for it. Spreads are the
    half-widths of the confidence intervals of rates (`records/confidence.py`), relative to them.
    Peaks are None if they cannot be read.

    Example:
        >>> (trial,) = autofit.measure(build_model, arrays, [autofit.FitConfig(64)], progress=False)
        >>> trial.measurement.samples_per_second > 0 < trial.measurement.host_peak_bytes
        True
    """

    outcome: Outcome
    evidence: Evidence
    seconds: Seconds = 0.0  # the duration of the trial
    samples_per_second: Rate | None = None
    spread: Ratio | None = None
    step_seconds: Seconds | None = None
    steps: Count = 0
    # of the same step on one cached batch
    compute_samples_per_second: Rate | None = None
    compute_spread: Ratio | None = None
    input_samples_per_second: Rate | None = None  # of the input pipeline alone
    input_spread: Ratio | None = None
    # whether this trial read the rates of step and pipeline alone: not if an earlier trial did, or
    # if a reading was below the steady rate, to which it is then raised
    compute_is_read: bool = True
    input_is_read: bool = True
    device_peak_bytes: Count | None = None
    host_peak_bytes: Count | None = None
    # with the phase in which the input pipeline runs alone, which the total peaks are without
    device_peak_bytes_by_phase: Mapping[Phase, Count] = field(default_factory=dict)
    host_peak_bytes_by_phase: Mapping[Phase, Count] = field(default_factory=dict)
    # the driver's highest report, with the GPU's context and libraries
    driver_peak_bytes: Count | None = None
    allocator_notice: str = ""  # what the device's allocator had to do, as a sentence
    # that were ready or in progress when the queue was full
    queued_batches: int | None = None
    started_at: Seconds | None = None  # since 1970 (UTC)
    phase_seconds: Mapping[Phase, Seconds] = field(default_factory=dict)
    conditions: Conditions | None = None  # while the rate was timed
    traceback: str | None = None
    # readings of the steady rate: ends of blocks of steps, in seconds and in calls of the train
    # function since the first
    blocks: tuple[tuple[Seconds, Ratio], ...] = ()
    steady_samples_per_second: Rate | None = None
    # of the steady part: what was spent on compiling the step for batches of new shapes
    compiling_share: Ratio = 0.0
    epoch_samples: Positive | None = None
    epoch_gap_seconds: Seconds | None = None
    epoch_gap_unread: str = ""
    # that a validation on all held-out samples takes in addition
    validation_seconds: Seconds | None = None

    @property
    def epoch_seconds(self) -> float | None:
        """The seconds of an epoch, without validation; None if the gap before it was not read."""
        if (
            self.epoch_gap_seconds is None
            or not self.epoch_samples
            or not self.samples_per_second
        ):
            return None
        return self.epoch_samples / self.samples_per_second

    def alone(self, part: Literal["compute", "input"]) -> float | None:
        """Return the rate of step or input alone that a trial of this tune read.

        It is None if a reading was raised to the steady rate.
        """
        rate = getattr(self, f"{part}_samples_per_second")
        is_read = getattr(self, f"{part}_is_read")
        return rate if is_read or rate != self.steady_samples_per_second else None

    @property
    def is_disturbed(self) -> bool:
        return self.conditions is not None and self.conditions.is_disturbed

    @property
    def ran_out_of_time(self) -> bool:
        """Whether the trial was still making progress when its time was over."""
        return self.outcome is Outcome.TIMEOUT and not self.evidence.hung


def noise_of(spread: float | None) -> float:
    """Return the relative standard deviation of a rate, which is at least that between runs."""
    if spread is None:
        return _USUAL_RATE_NOISE
    return max(_RATE_NOISE_FLOOR, spread / confidence.rough_deviations())


@dataclass(frozen=True)
class Trial:
    """A `FitConfig` that ran in its own process, with its measurement.

    Example:
        >>> (trial,) = autofit.measure(build_model, arrays, [autofit.FitConfig(64)], progress=False)
        >>> trial.config.batch_size
        64
    """

    config: FitConfig
    measurement: Measurement
    why: str = ""  # the search chose it
    stage: Stage = Stage.SEARCH
    number: int | None = None  # among the stored trials of a tune, from 0
    decided_after: Seconds = 0.0  # since the tune began

    def fits(self, limits: Limits) -> bool:
        if self.measurement.outcome is not Outcome.OK:
            return False
        device_bytes = self.measurement.device_peak_bytes or 0
        return limits.allow(device_bytes, self.measurement.host_peak_bytes or 0)

    @property
    def samples_per_second(self) -> float:
        """The rate that this trial read, in samples per second; 0 if it read none."""
        return self.measurement.samples_per_second or 0.0


@dataclass(frozen=True)
class TrialSpec:
    """Everything that a trial's process needs to know."""

    role: Role
    # a describing trial replaces None by the factory's default, or Keras's if the factory has none
    config: FitConfig
    limits: Limits
    deadline_seconds: float
    # longest for the end-to-end rate; a describing trial measures none
    measure_seconds: float = 0.0
    # whose memory a describing trial estimates, or the first ones if XLA compiles the step
    batch_sizes: tuple[int, ...] = ()
    compile_all: bool = False  # whether it compiles for all of them
    gpus: tuple[str, ...] = ()  # models of GPUs to estimate the memory on instead
    # a measuring trial ends early if its rate is clearly below
    rate_to_beat: float | None = None
    # A measuring trial does not time the step alone if its rate is given. A confirming trial needs
    # both rates to discount the batches that were in the queue before, which would inflate the
    # rate.
    compute_samples_per_second: float | None = None
    input_samples_per_second: float | None = None
    # up to which the optimizer accumulates gradients
    effective_batch_size: int | None = None
    # Whether it does what only its memory is read for: it waits until the queue is full and, if it
    # confirms, validates. Otherwise it waits for the queue only if the input is clearly faster than
    # the step.
    reads_memory: bool = True
    # of steady training for which the gap between epochs is read
    longest_epoch_seconds: float = 0.0
    # of data that does not know them, or that `steps_per_epoch` of `fit` sets
    epoch_samples: int | None = None
    # whether a measuring trial validates as a confirming one does
    validates: bool = False
    jit_compile: bool | None = None  # in place of the model's own
