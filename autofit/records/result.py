"""What a tune comes to: the choice, its proof, and all that a report needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.records.machine import Machine
from autofit.records.trial import Description, FitConfig, Limits, Outcome, Trial

RESULT_VERSION = 2


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
    confirmed: bool
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
    `data` and `validation` name what the forms say: a "factory", which is called with the kwargs here and the knobs that it
    takes; an "object", whose attributes the knobs are; or "arrays".
    """

    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_form: str = "factory"
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_form: str = "factory"
    dtype_policy: str | None = None
    jit_compile: bool | None = None


@dataclass(frozen=True)
class ConfirmingRun:
    """A trial after the search; `stage` is finalist, chosen or baseline.

    It validated on batches of `validation_batch_size`, of the config's own size where that is None.
    """

    stage: str
    trial: Trial
    validation_batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class TuneLog:
    """What a tune saw, whether it came to an answer or not.

    `description` is None where not even the model could be built within the limits. `trials` are those of the search,
    `runs` those that came after it; `seconds` is what all took, `describing_seconds` of it what came before the first
    trial. `started_at` is in seconds since 1970 (UTC). A run that failed is among the `trials`, too, where it counts
    against its config.
    """

    limits: Limits
    machine: Machine
    device: str
    description: Description | None
    trials: tuple[Trial, ...]
    runs: tuple[ConfirmingRun, ...] = ()
    seconds: float
    describing_seconds: float = 0.0
    started_at: float = 0.0
    usage: Usage
    version: int = RESULT_VERSION

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials that the search itself ran."""
        after = {(run.trial.config, run.trial.measurement.started_at) for run in self.runs}
        return tuple(
            trial
            for trial in self.trials
            if trial.measurement.started_at is None or (trial.config, trial.measurement.started_at) not in after
        )


@dataclass(frozen=True, kw_only=True)
class FailedTune(TuneLog):
    """A tune that came to no answer: `problem` says why.

    Where it was for memory, `memory` is "device" or "host", and `needed_bytes` what the smallest batch, of `batch_size`,
    needs of it; that is a lower bound where `at_least`.
    """

    problem: str
    memory: str | None = None
    batch_size: int | None = None
    needed_bytes: int | None = None
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneRecord(TuneLog):
    """One tune, whole: the choice, its proof, and every trial.

    `data_kwargs` are for the data factory (of a ready-made PyDataset: its attributes), `fit_kwargs` for `Model.fit`,
    `optimizer_kwargs` for the optimizer; the latter are there where gradients are accumulated to keep the
    `effective_batch_size` that was asked for. The validation data takes `validation_batch_size` where that is another than
    the config's.
    """

    config: FitConfig
    fit_kwargs: Mapping[str, Any]
    data_kwargs: Mapping[str, Any]
    optimizer_kwargs: Mapping[str, Any]
    samples_per_second: float
    spread: float | None
    speedup: Speedup
    confirmed: bool
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    bottleneck: str
    compute_samples_per_second: float | None
    input_samples_per_second: float | None
    stop_reason: str
    description: Description
    frontier: tuple[FrontierPoint, ...]
    validation_batch_size: int | None = None
    effective_batch_size: int | None = None

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
    def outcome(self) -> str:
        """In a word: ok, does not fit, failed, or waiting where it was not run yet."""
        if isinstance(self.found, TuneRecord):
            return "ok"
        if self.found is None:
            return "failed" if self.problem else "waiting"
        return "does not fit" if self.found.memory else "failed"

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
