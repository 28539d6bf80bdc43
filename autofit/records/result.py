"""Results of tunes, sweeps and estimates: what a report needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.records.machine import Machine
from autofit.records.trial import Description, FitConfig, Limits, Outcome, Stage, Text, Trial

RESULT_VERSION = 2


class Bottleneck(Text):
    """What holds the rate back."""

    COMPUTE = "compute"
    INPUT = "input"
    CONTENTION = "contention"
    UNKNOWN = "unknown"


class DataForm(Text):
    """What the user passes as data."""

    FACTORY = "factory"
    OBJECT = "object"
    ARRAYS = "arrays"


class CellOutcome(Text):
    """How a cell of a sweep ended."""

    OK = "ok"
    DOES_NOT_FIT = "does not fit"
    FAILED = "failed"
    WAITING = "waiting"


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
    """The chosen config, with the figures of the runs that confirmed it.

    `validation_batch_size` is there where validation does not fit with as many samples a batch as training does.
    """

    config: FitConfig
    samples_per_second: float
    spread: float | None
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    speedup: Speedup
    validation_batch_size: int | None = None


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

    `dtype_policy` and `jit_compile` are set around the model where they are not None.
    The forms say what `data` and `validation` are: a factory, called with these kwargs and the knobs that it takes; an
    object whose attributes the knobs are; or arrays.
    """

    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_form: DataForm = DataForm.FACTORY
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_form: DataForm = DataForm.FACTORY
    dtype_policy: str | None = None
    jit_compile: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TuneLog:
    """Everything that a tune has run, whether it has a result or not.

    `description` is None when not even the model could be built within the limits. `trials` are the stored ones: those of
    the search, and later runs that failed and so count against their config. `runs` are all trials after the search.
    `seconds` is the duration of the tune, `describing_seconds` the part of it before the first trial. `started_at` is in
    seconds since 1970 (UTC).
    """

    limits: Limits
    machine: Machine
    device: str
    description: Description | None
    trials: tuple[Trial, ...]
    runs: tuple[Trial, ...] = ()
    seconds: float
    describing_seconds: float = 0.0
    started_at: float = 0.0
    usage: Usage
    version: int = RESULT_VERSION

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search."""
        return tuple(trial for trial in self.trials if trial.stage is Stage.SEARCH)


@dataclass(frozen=True, kw_only=True)
class FailedTune(TuneLog):
    """A tune without a result; `problem` says why.

    Where the reason is memory, `memory` is "device" or "host", and `needed_bytes` what the smallest batch, of `batch_size`,
    needs of it; a lower bound if `at_least`.
    """

    problem: str
    memory: str | None = None
    batch_size: int | None = None
    needed_bytes: int | None = None
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneRecord(TuneLog):
    """A tune with its result: the choice, the runs that confirmed it, and every trial.

    `choice` is the chosen config with its confirmed figures. `data_kwargs` are for the data factory (of a ready-made
    PyDataset: its attributes), `fit_kwargs` for `Model.fit`, `optimizer_kwargs` for the optimizer; the latter are set when
    gradients are accumulated to keep the `effective_batch_size`.
    """

    choice: Recommendation
    fit_kwargs: Mapping[str, Any]
    data_kwargs: Mapping[str, Any]
    optimizer_kwargs: Mapping[str, Any]
    bottleneck: Bottleneck
    compute_samples_per_second: float | None
    input_samples_per_second: float | None
    stop_reason: str
    description: Description
    frontier: tuple[FrontierPoint, ...]
    effective_batch_size: int | None = None

    @property
    def config(self) -> FitConfig:
        """The chosen config."""
        return self.choice.config

    @property
    def samples_per_second(self) -> float:
        """The rate at which it was confirmed: the median of its confirming runs."""
        return self.choice.samples_per_second

    @property
    def spread(self) -> float | None:
        """Half-width of the 95 % confidence interval of that rate, relative to it."""
        return self.choice.spread

    @property
    def speedup(self) -> Speedup:
        """The gain over the baseline."""
        return self.choice.speedup

    @property
    def device_peak_bytes(self) -> int | None:
        """Its peak of device memory."""
        return self.choice.device_peak_bytes

    @property
    def host_peak_bytes(self) -> int | None:
        """Its peak of host memory."""
        return self.choice.host_peak_bytes

    @property
    def validation_batch_size(self) -> int | None:
        """The batch size of the validation data where it is not the config's."""
        return self.choice.validation_batch_size

    @property
    def headroom(self) -> dict[str, float | None]:
        """The share of each limit that the chosen config left free, from 0 to 1; None without a limit or a reading."""
        device = _share_left(self.device_peak_bytes, self.limits.device_bytes)
        return {"device": device, "host": _share_left(self.host_peak_bytes, self.limits.host_bytes)}


def _share_left(peak_bytes: int | None, limit_bytes: int | None) -> float | None:
    return None if peak_bytes is None or limit_bytes is None else 1 - peak_bytes / limit_bytes


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep: its values by axis, and what its tune came to; `problem` says what failed where nothing did.

    An axis is a dotted argument of `tune`, as `model_kwargs.width`; several joined by commas take the same value.
    """

    values: Mapping[str, Any]
    found: TuneRecord | FailedTune | None = None
    problem: str = ""

    @property
    def outcome(self) -> CellOutcome:
        """How its tune ended; waiting where it has not run yet."""
        if isinstance(self.found, TuneRecord):
            return CellOutcome.OK
        if self.found is None:
            return CellOutcome.FAILED if self.problem else CellOutcome.WAITING
        return CellOutcome.DOES_NOT_FIT if self.found.memory else CellOutcome.FAILED

    @property
    def problem_line(self) -> str:
        """The problem in one line, without its traceback: the first line and the last."""
        lines = self.problem.strip().splitlines()
        return " ".join(dict.fromkeys(line.strip() for line in (lines[:1] + lines[-1:])))


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A sweep: a tune for each cell of a matrix, in its order."""

    title: str
    cells: tuple[Cell, ...]
    machine: Machine
    seconds: float
    started_at: float
    version: int = RESULT_VERSION

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of all cells, in the order in which cells name them."""
        return tuple(dict.fromkeys(axis for cell in self.cells for axis in cell.values))


@dataclass(frozen=True)
class PastTune:
    """A tune that a storage holds; `config` and the rate are there once it has its answer. `started_at` as in `TuneLog`."""

    name: str
    title: str
    started_at: float
    host: str
    device: str
    limits: str
    trials: int
    config: str = ""
    samples_per_second: float | None = None


@dataclass(frozen=True)
class EstimateRow:
    """What one batch size is estimated to need, bytes by part; the upper bounds hold with 99 % probability.

    `fits` says whether both upper bounds are within the limits.
    """

    batch_size: int
    device_bytes_by_part: Mapping[str, int]
    host_bytes_by_part: Mapping[str, int]
    device_upper_bytes: int
    host_upper_bytes: int
    fits: bool

    @property
    def device_bytes(self) -> int:
        """Device memory in all."""
        return sum(self.device_bytes_by_part.values())

    @property
    def host_bytes(self) -> int:
        """Host memory in all."""
        return sum(self.host_bytes_by_part.values())


@dataclass(frozen=True)
class Estimate:
    """What a workload will need, nothing trained: a row for each batch size, under the other knobs of `config`.

    `largest_batch_size` is the largest whose upper bounds are within the limits; None when not even one sample's are.
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
        """How device memory was estimated."""
        return self.description.footprints[0].method

    @property
    def relative_error(self) -> float:
        """95 % of such estimates of device memory are within this share of what is measured."""
        return self.description.footprints[0].relative_error
