"""Results of tunes, with all that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.records.bounds import Count, Positive, Rate, Ratio, Seconds
from autofit.records.description import Description
from autofit.records.machine import ON_CPU, Machine, Placement
from autofit.records.states import Outcome, Stage, Text
from autofit.records.trial import FitConfig, Limits, Trial

RESULT_VERSION = 2
"""Format version of `result.json` and `sweep.json`; files of other versions are refused."""


class Bottleneck(Text):
    """What limits the rate."""

    COMPUTE = "compute"
    INPUT = "input"
    CONTENTION = "contention"
    UNKNOWN = "unknown"


class DataForm(Text):
    """The kind of data that the user passes."""

    FACTORY = "factory"
    OBJECT = "object"
    ARRAYS = "arrays"


SHOWING_PAIRS = 2
"""Fewest pairs of runs that can show a gain; one pair has no confidence interval."""

KEPT_PAIRS = 3
"""Pairs of runs for which time is reserved; most gains need no more."""


@dataclass(frozen=True)
class Speedup:
    """How much faster a config is than the baseline.

    `ratio` compares the geometric means of the runs of both; `low` and `high` bound its 95 % confidence interval. All three
    are None if no pair of runs finished, `low` and `high` if only one did; `baseline_outcome` says how the baseline ended.
    The ratio is a gain only if `is_shown`.

    Raises:
        ValueError: the three contradict each other (a damaged file).
    """

    baseline: FitConfig
    baseline_outcome: Outcome
    ratio: Ratio | None = None
    low: Ratio | None = None
    high: Ratio | None = None
    pairs: Count = 0

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None) or (self.ratio is None and self.low is not None):
            raise ValueError("ratio, low and high contradict each other: low and high need each other and a ratio")

    @property
    def is_shown(self) -> bool:
        """Whether at least two pairs of runs show a gain, with an interval above 1.0."""
        return self.pairs >= SHOWING_PAIRS and self.low is not None and self.low > 1.0

    @property
    def is_loss(self) -> bool:
        """Whether at least two pairs of runs show a loss, with an interval below 1.0."""
        return self.pairs >= SHOWING_PAIRS and self.high is not None and self.high < 1.0


@dataclass(frozen=True)
class Challenger:
    """A config that did not beat the baseline in paired runs, with the median rate of its runs."""

    config: FitConfig
    samples_per_second: float
    speedup: Speedup


class DecidedBy(Text):
    """What decided between the chosen config and one with a higher reading."""

    READINGS = "readings"
    CONFIRMATION = "confirmation"
    FAILURE = "failure"
    TIME = "time"


@dataclass(frozen=True)
class RateEstimate:
    """An estimated rate with its relative standard deviation."""

    samples_per_second: float
    deviation: float


@dataclass(frozen=True)
class PassedOver:
    """The config with the highest reading of all runs, if it is not the choice, and what decided against it."""

    config: FitConfig
    samples_per_second: float
    decided_by: DecidedBy


@dataclass(frozen=True)
class Recommendation:
    """The chosen config, with the figures of the runs that confirmed it.

    `validation_batch_size` is set if validation fits only in smaller batches than training, `challenger` if the baseline
    kept its place, `passed_over` if another config has the highest reading. If `confirmed` is False, no time was left for
    confirming runs and the figures come from the search.
    """

    config: FitConfig
    samples_per_second: Rate
    spread: Ratio | None
    device_peak_bytes: Count | None
    host_peak_bytes: Count | None
    speedup: Speedup
    validation_batch_size: Positive | None = None
    challenger: Challenger | None = None
    passed_over: PassedOver | None = None
    confirmed: bool = True


@dataclass(frozen=True)
class FrontierPoint:
    """The largest batch that fits and the smallest that does not, for one setting of the other knobs.

    `config.batch_size` is None.
    """

    config: FitConfig
    largest_batch_size: int | None
    smallest_oom_batch_size: int | None


@dataclass(frozen=True)
class CallSource:
    """How the user's functions are written in code: import lines, and expressions for the model and the data.

    `dtype_policy`, `jit_compile` and `distribution` apply to the model unless they are None, `backend` to Keras.
    `data_form` and `validation_form` say whether `data` and `validation` are a factory, called with these kwargs and the
    knobs that it takes; an object with the knobs as attributes; or arrays. `fit_kwargs` are further arguments of `fit`. The
    expressions are arguments that code makes, such as callbacks and values from the environment, with that code.
    """

    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_expressions: Mapping[str, str] = field(default_factory=dict)
    data_form: DataForm = DataForm.FACTORY
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_expressions: Mapping[str, str] = field(default_factory=dict)
    validation_form: DataForm = DataForm.FACTORY
    fit_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fit_expressions: Mapping[str, str] = field(default_factory=dict)
    dtype_policy: str | None = None
    jit_compile: bool | None = None
    backend: str | None = None
    distribution: str | None = None


@dataclass(frozen=True, kw_only=True)
class TuneLog:
    """All that a tune ran, with or without a result.

    `description` is None if the model could not be built within the limits. `trials` are the stored trials: those of the
    search, and later runs that failed and therefore count against their config. `runs` are all trials after the search.
    `seconds` is the duration of the tune, `describing_seconds` the part of it before the first trial. `started_at` is in
    seconds since 1970 (UTC).
    """

    limits: Limits
    machine: Machine
    device: str
    description: Description | None
    trials: tuple[Trial, ...]
    runs: tuple[Trial, ...] = ()
    seconds: Seconds
    describing_seconds: Seconds = 0.0
    started_at: Seconds = 0.0
    call_source: CallSource
    placement: Placement = ON_CPU
    version: int = RESULT_VERSION

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search."""
        return tuple(trial for trial in self.trials if trial.stage is Stage.SEARCH)


@dataclass(frozen=True, kw_only=True)
class FailedTune(TuneLog):
    """A tune without a result, for the reason in `problem`.

    If nothing fits, `memory` is "device" or "host", `batch_size` the smallest batch size, and `needed_bytes` the memory it
    needs (a lower bound if `at_least`).
    """

    problem: str
    memory: str | None = None
    batch_size: Positive | None = None
    needed_bytes: Count | None = None
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneRecord(TuneLog):
    """A tune with its result.

    `choice` is the chosen config with its confirmed figures. `data_kwargs` are for the data factory (or the attributes of a
    PyDataset object), `fit_kwargs` for `Model.fit`; `optimizer_kwargs` are set when gradients are accumulated to keep the
    `effective_batch_size`. The compute and the input rate are the ceilings of one run of the chosen config, in which the
    whole `fit` reached `ceilings_run_samples_per_second`; a ceiling that read lower than the `fit` is None.
    `untuned` gives the reason for each knob that the data takes but that could not be tuned.
    """

    choice: Recommendation
    fit_kwargs: Mapping[str, Any]
    data_kwargs: Mapping[str, Any]
    optimizer_kwargs: Mapping[str, Any]
    bottleneck: Bottleneck
    compute_samples_per_second: Rate | None
    input_samples_per_second: Rate | None
    stop_reason: str
    description: Description
    frontier: tuple[FrontierPoint, ...]
    effective_batch_size: Positive | None = None
    ceilings_run_samples_per_second: Rate | None = None
    untuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> FitConfig:
        """The chosen config."""
        return self.choice.config

    @property
    def samples_per_second(self) -> float:
        """The median rate of the confirming runs."""
        return self.choice.samples_per_second

    @property
    def rate_on_each(self) -> float:
        """The rate of each device if several share each batch."""
        return self.samples_per_second / self.placement.count

    @property
    def spread(self) -> float | None:
        """Half-width of the 95 % confidence interval of the rate, relative to it."""
        return self.choice.spread

    @property
    def speedup(self) -> Speedup:
        """The gain over the baseline."""
        return self.choice.speedup

    @property
    def device_peak_bytes(self) -> int | None:
        """Peak device memory of the chosen config."""
        return self.choice.device_peak_bytes

    @property
    def host_peak_bytes(self) -> int | None:
        """Peak host memory of the chosen config."""
        return self.choice.host_peak_bytes

    @property
    def validation_batch_size(self) -> int | None:
        """The batch size of the validation data; None for that of the config."""
        return self.choice.validation_batch_size

    @property
    def headroom(self) -> dict[str, float | None]:
        """Share of each limit that the chosen config leaves free, from 0 to 1; None without a limit or a reading."""
        device = _share_left(self.device_peak_bytes, self.limits.device_bytes)
        return {"device": device, "host": _share_left(self.host_peak_bytes, self.limits.host_bytes)}


@dataclass(frozen=True)
class PastTune:
    """A tune in a storage, as `autofit history` lists it; `config` and the rate are set once it has a result.

    `started_at` is in seconds since 1970 (UTC).
    """

    name: str
    title: str = ""
    started_at: Seconds = 0.0
    host: str = ""
    device: str = ""
    limits: str = ""
    trials: Count = 0
    config: str = ""
    samples_per_second: Rate | None = None


def _share_left(peak_bytes: int | None, limit_bytes: int | None) -> float | None:
    return None if peak_bytes is None or limit_bytes is None else 1 - peak_bytes / limit_bytes
