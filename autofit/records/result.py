"""Results of tunes, with everything that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BeforeValidator

from autofit.records.bounds import Count, Positive, Rate, Ratio, Seconds
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.machine import ON_CPU, Machine, Placement
from autofit.records.states import Outcome, Stage, Text
from autofit.records.trial import FitConfig, Limits, Trial

RESULT_VERSION = 3
"""The format version of `result.json` and `sweep.json`; autofit refuses files of other versions."""


def _with_whole_labels(fit_kwargs: Any) -> Any:
    """Make the keys of `class_weight` integers again: in JSON, all keys are strings."""
    weights = fit_kwargs.get("class_weight") if isinstance(fit_kwargs, Mapping) else None
    if not isinstance(weights, Mapping) or not all(str(label).lstrip("-").isdigit() for label in weights):
        return fit_kwargs
    return {**fit_kwargs, "class_weight": {int(label): weight for label, weight in weights.items()}}


FitKwargs = Annotated[Mapping[str, Any], BeforeValidator(_with_whole_labels)]
"""Arguments of `Model.fit`."""


class Bottleneck(Text):
    """The part of training that limits the rate."""

    COMPUTE = "compute"
    INPUT = "input"
    CONTENTION = "contention"
    UNKNOWN = "unknown"


class DataForm(Text):
    """The form in which the user passes the data."""

    FACTORY = "factory"
    OBJECT = "object"
    ARRAYS = "arrays"


LOOKS = (3, 5, 8)
"""The numbers of rounds of confirming runs after which a gain may be shown. Two runs do not tell how much runs differ."""


@dataclass(frozen=True)
class Speedup:
    """The rate of a config relative to the baseline, from pairs of runs.

    `ratio` is the geometric mean of the config's rates divided by that of the baseline's; `low` and `high` are the ends of
    its 95% confidence interval. If only one pair of runs finished, `low` and `high` are None; if none did, `ratio` is None
    as well. `pairs` is the number of pairs that finished. `baseline_outcome` is how the baseline's runs ended. The ratio
    counts as a gain only if `is_shown` is true.

    Raises:
        ValueError: `ratio`, `low` and `high` contradict each other, as in a damaged file.
    """

    baseline: FitConfig
    baseline_outcome: Outcome
    ratio: Ratio | None = None
    low: Ratio | None = None
    high: Ratio | None = None
    pairs: Count = 0

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None) or (self.ratio is None and self.low is not None):
            raise ValueError("ratio, low and high contradict each other: low and high come together, and only with a ratio")

    @property
    def is_shown(self) -> bool:
        """Whether enough pairs of runs show a gain: the interval is above 1.0."""
        return self.pairs >= LOOKS[0] and self.low is not None and self.low > 1.0

    @property
    def is_loss(self) -> bool:
        """Whether enough pairs of runs show a loss: the interval is below 1.0."""
        return self.pairs >= LOOKS[0] and self.high is not None and self.high < 1.0


@dataclass(frozen=True)
class Challenger:
    """A config that did not beat the baseline in pairs of runs, with the median rate of its runs."""

    config: FitConfig
    samples_per_second: float
    speedup: Speedup


@dataclass(frozen=True)
class Answer:
    """A config that a tune recommends, with the figures of its confirming runs and the arguments that set it.

    `samples_per_second` is the median rate, and `spread` the half-width of its 95% confidence interval, relative to it.
    Peaks are None if they could not be read. `speedup` compares the config with the baseline. `challenger` is the last
    config that was compared with this one, and not shown to be faster. `validation_batch_size` is set only if validation
    needs smaller batches than training. If `confirmed` is false, the figures come from the search. `needed_seconds` is the
    `max_seconds` that would have allowed what time did not; None if time did not decide.

    `data_kwargs` are for the data factory (or the attributes of a PyDataset object), `fit_kwargs` for `Model.fit`.
    `optimizer_kwargs` are for the optimizer; they are empty unless gradients are accumulated. `code` sets all of them.
    """

    config: FitConfig
    samples_per_second: Rate
    spread: Ratio | None
    device_peak_bytes: Count | None
    host_peak_bytes: Count | None
    speedup: Speedup
    validation_batch_size: Positive | None = None
    challenger: Challenger | None = None
    confirmed: bool = True
    needed_seconds: Seconds | None = None
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fit_kwargs: FitKwargs = field(default_factory=dict)
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""

    @property
    def compile_kwargs(self) -> dict[str, int]:
        """The arguments of `compile` that were tuned; empty if none was."""
        steps = self.config.steps_per_execution
        return {} if steps is None else {STEPS_PER_EXECUTION: steps}

    def snippet(self) -> str:
        """Return Python code that trains the model with this config."""
        return self.code


@dataclass(frozen=True)
class CallSource:
    """The source code that calls the user's functions: import lines, and expressions for the model and the data.

    `dtype_policy`, `jit_compile` and `distribution` apply to the model and `backend` to Keras, unless they are None. `call`
    is the method that is tuned: fit, predict or evaluate; `fit_kwargs` are its arguments.
    `data_form` and `validation_form` say whether `data` and `validation` name a factory, an object with the knobs as
    attributes, or arrays. A factory is called with the kwargs given here and with the knobs that it takes. `fit_kwargs` are
    further arguments of `fit`, `fit_expressions` those whose value is computed, such as callbacks, with the code that
    computes it. Values with environment variables are as the YAML file has them: `${NAME}`. `settings` are lines that
    set Keras and its backend as the calling program has. `elided` names the parts (model, data, validation, fit) that only
    the user's program can write, such as arrays and lambdas.
    """

    imports: tuple[str, ...] = ()
    model: str = "build_model()"
    data: str = "data"
    data_kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_form: DataForm = DataForm.FACTORY
    validation: str | None = None
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_form: DataForm = DataForm.FACTORY
    fit_kwargs: FitKwargs = field(default_factory=dict)
    fit_expressions: Mapping[str, str] = field(default_factory=dict)
    dtype_policy: str | None = None
    jit_compile: bool | None = None
    backend: str | None = None
    call: str = "fit"
    distribution: str | None = None
    settings: tuple[str, ...] = ()
    elided: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """What the user does with the model: train, predict or evaluate."""
        return "train" if self.call == "fit" else self.call


@dataclass(frozen=True, kw_only=True)
class TuneLog:
    """Everything that a tune ran, with or without a result.

    `description` is None if the model could not be built within the limits. `trials` are the stored trials: those of the
    search, and later runs that failed and therefore count against their config. `runs` are all trials after the search.
    `study` is the name of the study that holds the trials. `seconds` is the duration of the tune, `describing_seconds` the
    part of it before the first trial. `started_at` is in seconds since 1970 (UTC).
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
    study: str = ""
    version: int = RESULT_VERSION

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search."""
        return tuple(trial for trial in self.trials if trial.stage is Stage.SEARCH)


@dataclass(frozen=True, kw_only=True)
class FailedTune(TuneLog):
    """A tune without a result; `problem` is the reason.

    If nothing fits, `memory` is the memory that is exceeded ("device" or "host"), `batch_size` the smallest batch size, and
    `needed_bytes` the memory that this size needs; `at_least` is true if `needed_bytes` is a lower bound. If the
    tune failed for another reason, `memory`, `batch_size` and `needed_bytes` are None.
    """

    problem: str
    memory: str | None = None
    batch_size: Positive | None = None
    needed_bytes: Count | None = None
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneRecord(TuneLog):
    """A tune with its result.

    `fastest` is the fastest config that fits; `config`, `fit_kwargs` and others are its own. `same_batch` is the fastest of
    those with the batch size of the baseline, which train with the same updates; None if none of them fits. Both are the
    same if no other batch size is shown to be faster, and also if none would change the updates.

    `compute_samples_per_second` and `input_samples_per_second` are ceilings of the rate of `fastest`, measured in one run;
    `ceilings_run_samples_per_second` is the rate of `fit` in that run. A ceiling is None if it was not read or is lower
    than that rate. `stop_reason` says why the search ended. `untuned` gives the reason for each knob that the data takes
    but that could not be tuned. `batch_is_default` is true if the baseline's batch size is Keras's, not the user's.
    """

    fastest: Answer
    same_batch: Answer | None
    bottleneck: Bottleneck
    compute_samples_per_second: Rate | None
    input_samples_per_second: Rate | None
    stop_reason: str
    description: Description
    effective_batch_size: Positive | None = None
    ceilings_run_samples_per_second: Rate | None = None
    untuned: Mapping[str, str] = field(default_factory=dict)
    batch_is_default: bool = False

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
    def headroom(self) -> dict[str, float | None]:
        """The share of each limit that the chosen config leaves free, at most 1; None without a limit or a reading."""
        limits, device, host = self.limits, self.device_peak_bytes, self.host_peak_bytes
        return {
            "device": None if device is None or limits.device_bytes is None else 1 - device / limits.device_bytes,
            "host": None if host is None else 1 - host / limits.host_bytes,
        }
