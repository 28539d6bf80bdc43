"""Results of tunes and sweeps, with everything that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, computed_field

from autofit.records.description import Description
from autofit.records.epoch import Epoch, PartName, epoch_of
from autofit.records.knobs import STEPS_PER_EXECUTION, FitConfig
from autofit.records.machine import ON_CPU, Machine, Placement
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Limits, Trial
from autofit.records.units import Count, Positive, Rate, Ratio, Seconds

# of the format of `result.json` and `sweep.json`; autofit refuses files of other versions
RESULT_VERSION = 4


def _with_whole_labels(fit_kwargs: Any) -> Any:
    """Make the keys of `class_weight` integers again: in JSON, all keys are strings."""
    weights = (
        fit_kwargs.get("class_weight") if isinstance(fit_kwargs, Mapping) else None
    )
    if not isinstance(weights, Mapping):
        return fit_kwargs
    if not all(str(label).lstrip("-").isdigit() for label in weights):
        return fit_kwargs
    whole = {int(label): weight for label, weight in weights.items()}
    return {**fit_kwargs, "class_weight": whole}


# of `Model.fit`
FitKwargs = Annotated[Mapping[str, Any], BeforeValidator(_with_whole_labels)]

# how the user passes the data: a function, an object with the knobs as attributes, or arrays
DataForm = Literal["factory", "object", "arrays"]
CellOutcome = Literal["ok", "does not fit", "failed", "waiting"]

# of runs beside each other, after which a gain may be shown; two runs do not tell how much runs
# differ
ROUNDS = 3


@dataclass(frozen=True)
class Speedup:
    """The rate of a config relative to the baseline.

    By pairs of runs beside each other, which may show a gain; or, if `pairs` is 0, by all readings
    of the tune.
    """

    baseline: FitConfig
    baseline_outcome: Outcome
    # of the geometric means of both configs' rates; None if it is not known
    ratio: Ratio | None = None
    # the ends of its confidence interval; None for a single pair
    low: Ratio | None = None
    high: Ratio | None = None
    pairs: Count = 0  # that finished

    @property
    def is_shown(self) -> bool:
        return self.pairs >= ROUNDS and self.low is not None and self.low > 1.0

    @property
    def is_loss(self) -> bool:
        return self.pairs >= ROUNDS and self.high is not None and self.high < 1.0


@dataclass(frozen=True)
class Answer:
    """A config that a tune recommends, with its figures and the arguments that set it.

    The rate, its spread and the gain of a shown answer are those of its runs beside the baseline,
    and those of a likely one are those of all readings.
    """

    config: FitConfig
    samples_per_second: Rate
    spread: Ratio | None  # the half-width of its confidence interval, relative to it
    device_peak_bytes: Count | None  # None if it could not be read
    host_peak_bytes: Count | None
    speedup: Speedup  # over the baseline
    # of being faster than the baseline, by all readings; None for the baseline itself, or if that
    # did not run
    probability: Ratio | None = None
    confirmed: bool = True  # otherwise the figures come from the search
    # the `max_seconds` that would have allowed what time did not
    needed_seconds: Seconds | None = None
    # of the factory, or attributes of a PyDataset object
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fit_kwargs: FitKwargs = field(default_factory=dict)
    # empty unless gradients are accumulated
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""  # that sets all of them
    # what else in the program depends on the batch size
    adjustments: tuple[str, ...] = ()

    @property
    def compile_kwargs(self) -> dict[str, int]:
        """The arguments of `compile` that were tuned."""
        steps = self.config.steps_per_execution
        return {} if steps is None else {STEPS_PER_EXECUTION: steps}

    def snippet(self) -> str:
        return self.code


@dataclass(frozen=True)
class CallSource:
    """The source code that calls the user's functions: import lines, and expressions for the model
    and the data.
    """

    # A factory is called with the kwargs given here and with the knobs that it takes. Values with
    # environment variables are as the YAML file has them: `${NAME}`.
    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_form: DataForm = "factory"
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_form: DataForm = "factory"
    fit_kwargs: FitKwargs = field(default_factory=dict)
    # arguments that are computed, such as callbacks
    fit_expressions: Mapping[str, str] = field(default_factory=dict)
    dtype_policy: str | None = None
    jit_compile: bool | None = None
    backend: str | None = None
    call: str = "fit"  # or predict, or evaluate
    distribution: str | None = None
    # lines that set Keras and its backend as the calling program has
    settings: tuple[str, ...] = ()
    script: str = ""  # the command line of a script that is tuned in place of functions
    digest: str = ""  # of that script, as it is
    # of model, data, validation and fit: what only the user's program can write, as arrays
    elided: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TuneLog:
    """Everything that a tune ran, with or without a result."""

    limits: Limits
    machine: Machine
    device: str
    # None if the model could not be built within the limits
    description: Description | None
    # stored: those of the search, and later runs that failed, which count against their config
    trials: tuple[Trial, ...]
    runs: tuple[Trial, ...] = ()  # after the search
    seconds: Seconds
    describing_seconds: Seconds = 0.0  # the part of `seconds` before the first trial
    started_at: Seconds = 0.0  # since 1970 (UTC)
    call_source: CallSource
    placement: Placement = ON_CPU
    study: str = ""  # the name of the one that holds the trials
    version: int = RESULT_VERSION

    @property
    def searched(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.stage is Stage.SEARCH)

    @property
    def readings(self) -> tuple[Trial, ...]:
        """All that ran, each once: the trials of the search, then those after it."""
        return (*self.searched, *self.runs)


@dataclass(frozen=True, kw_only=True)
class FailedTune(TuneLog):
    """A tune without a result; `problem` is the reason.

    The other fields are set if nothing fits (`NothingFitsError`).
    """

    problem: str
    memory: str | None = None
    batch_size: Positive | None = None
    needed_bytes: Count | None = None


@dataclass(frozen=True)
class FailedCommand:
    """What a command with `--json` prints without a result or trials; `problem` is the reason."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class TuneRecord(TuneLog):
    """A tune with its result; `config`, `fit_kwargs` and others are those of the fastest answer."""

    fastest: Answer
    # the fastest of those with the batch size of the baseline, which train with the same updates;
    # None if none of them fits, and the same as `fastest` if no other batch size is likely to be
    # faster or would change the updates
    same_batch: Answer | None
    stop_reason: str  # of the search
    description: Description
    effective_batch_size: Positive | None = None
    # whether the baseline's batch size is Keras's, not the user's
    batch_is_default: bool = False
    # of a script: digests of it as it was, and after the edits of each answer
    digests: tuple[str, ...] = ()

    config = property(attrgetter("fastest.config"))
    data_kwargs = property(attrgetter("fastest.data_kwargs"))
    fit_kwargs = property(attrgetter("fastest.fit_kwargs"))
    compile_kwargs = property(attrgetter("fastest.compile_kwargs"))
    optimizer_kwargs = property(attrgetter("fastest.optimizer_kwargs"))
    samples_per_second = property(attrgetter("fastest.samples_per_second"))
    spread = property(attrgetter("fastest.spread"))
    speedup = property(attrgetter("fastest.speedup"))
    device_peak_bytes = property(attrgetter("fastest.device_peak_bytes"))
    host_peak_bytes = property(attrgetter("fastest.host_peak_bytes"))

    @property
    def epoch(self) -> Epoch | None:
        """An epoch with the fastest config, in parts; None if the record has no run of it."""
        ran = [trial.config for trial in self.readings if trial.samples_per_second]
        if self.config not in ran:
            return None
        return epoch_of(self.description, self.config, self.readings)

    @computed_field  # type: ignore[prop-decorator]  # a property is meant
    @property
    def bottleneck(self) -> PartName | None:
        """The largest part of such an epoch."""
        epoch = self.epoch
        return None if epoch is None else epoch.largest

    @property
    def headroom(self) -> dict[str, float | None]:
        """The share of each limit that the answer leaves free; None without limit or reading."""
        limits = self.limits
        return {
            "device": _free_share(self.device_peak_bytes, limits.device_bytes),
            "host": _free_share(self.host_peak_bytes, limits.host_bytes),
        }


def _free_share(peak_bytes: int | None, limit_bytes: int | None) -> float | None:
    if peak_bytes is None or limit_bytes is None:
        return None
    return 1 - peak_bytes / limit_bytes


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep: its values by axis, and its tune.

    An axis is a dotted argument of `tune`, such as `model_kwargs.width`; arguments joined by commas
    take the same value. `tune` is None until the tune ends; it stays None if the tune leaves no
    record. `problem` is the error of a tune without a result. `host` is the name of the host that
    tuned the cell.

    Example:
        >>> autofit.Cell({"model_kwargs.width": 8}).outcome
        'waiting'
    """

    values: Mapping[str, Any]
    tune: TuneRecord | FailedTune | None = None
    problem: str = ""
    host: str = ""

    @computed_field  # type: ignore[prop-decorator]  # a property is meant
    @property
    def outcome(self) -> CellOutcome:
        if isinstance(self.tune, TuneRecord):
            return "ok"
        if self.tune is None:
            return "failed" if self.problem else "waiting"
        return "does not fit" if self.tune.memory else "failed"

    @property
    def result(self) -> TuneRecord | None:
        return self.tune if isinstance(self.tune, TuneRecord) else None

    @property
    def problem_line(self) -> str:
        """The first and the last line of the problem, without the traceback between them."""
        lines = self.problem.strip().splitlines()
        return " ".join(
            dict.fromkeys(line.strip() for line in (lines[:1] + lines[-1:]))
        )


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A sweep: one tune for each cell of a matrix, in the order of the matrix."""

    title: str
    cells: tuple[Cell, ...]
    machine: Machine
    seconds: Seconds
    started_at: Seconds
    version: int = RESULT_VERSION

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that tuned the cells; empty if there is only one host."""
        hosts = tuple(dict.fromkeys(cell.host for cell in self.cells if cell.host))
        return hosts if len(hosts) > 1 else ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for cell in self.cells for axis in cell.values))
