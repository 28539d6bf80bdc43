"""Build the search space, list its configs, and compare them by cost and distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from autofit.errors import UsageError
from autofit.records.knobs import (
    AUTOTUNE,
    KERAS_DEFAULTS,
    KNOBS,
    STACKED_STEPS,
    STEPS_PER_EXECUTION,
    FitConfig,
)
from autofit.workload.arguments import written_as
from autofit.workload.inputs.knobs import NO_AUTOTUNE

# how pydantic validates arguments
VALIDATED = ConfigDict(extra="forbid", strict=True, frozen=True)

TOLERANCE = 0.02  # relative gain below which configs count as equally fast, by default

_AUTOTUNE_NAMES = ("auto", "autotune", "tf.data.autotune")
# samples; larger batches are tried only if the user's space has them
_LARGEST_BATCH = 4096
_LARGEST_GPU_BATCH = 2**16
_WORKERS = (0, 1, 2, 4, 8, 16)  # numbers that are tried, with that of the cores


def _whole_number(lowest: int, *, autotunes: bool = False) -> AfterValidator:
    """Return a check that a value is at least `lowest`, or AUTOTUNE if the knob `autotunes`."""

    def check(value: int) -> int:
        if value < lowest and not (autotunes and value == AUTOTUNE):
            or_auto = ", or -1 (tf.data.AUTOTUNE)" if autotunes else ""
            raise ValueError(f"give a whole number from {lowest} on{or_auto}")
        return value

    return AfterValidator(check)


def _read_autotune(value: Any) -> Any:
    """Replace a name of AUTOTUNE by its number."""
    return (
        AUTOTUNE
        if isinstance(value, str) and value.lower() in _AUTOTUNE_NAMES
        else value
    )


_AUTOTUNE_NAME = Annotated[str, Field(pattern=r"^(auto|AUTOTUNE|tf\.data\.AUTOTUNE)$")]
_AUTOTUNE = BeforeValidator(_read_autotune, json_schema_input_type=int | _AUTOTUNE_NAME)

# the values of a knob, as its row says: whole numbers from 0 or 1 on, or AUTOTUNE where it may be
_FromZero = Annotated[int, _whole_number(0)]
_FromOne = Annotated[int, _whole_number(1)]
_AutoFromZero = Annotated[int, _whole_number(0, autotunes=True), _AUTOTUNE]
_AutoFromOne = Annotated[int, _whole_number(1, autotunes=True), _AUTOTUNE]


# a range of whole numbers, both ends included
class Range(BaseModel):  # noqa: D101  # the JSON schema would show a docstring
    model_config = VALIDATED

    min: _FromOne
    max: _FromOne

    @model_validator(mode="after")
    def _ascending(self) -> Range:
        if self.min > self.max:
            raise ValueError("min is larger than max")
        return self


class _Workers:
    class Range(Range):  # of the same name, so that the JSON schema has one
        min: _FromZero
        max: _FromZero


_Value = TypeVar("_Value")
_Several = Annotated[list[_Value], Field(min_length=1)]
_CHOICES = written_as(
    'write one value, choices ([8, 16, 1024]) or a range ({"min": 8, "max": 1024})'
)
_SWITCHES = written_as("write true, false or a list of them")

# what a user writes to say which values to try
_Sizes = Annotated[Range | _Several[_FromOne] | _FromOne | None, _CHOICES]
_QueueSizes = Annotated[Range | _Several[_AutoFromOne] | _AutoFromOne | None, _CHOICES]
_WorkerCounts = Annotated[
    _Workers.Range | _Several[_AutoFromZero] | _AutoFromZero | None, _CHOICES
]
_Switches = Annotated[_Several[bool] | bool | None, _SWITCHES]


class Baseline(BaseModel):
    """The config to compare with; a knob left out has the data's value, or Keras's default."""

    model_config = VALIDATED

    batch_size: _FromOne | None = None
    workers: _AutoFromZero | None = None
    max_queue_size: _AutoFromOne | None = None
    use_multiprocessing: bool | None = None
    prefetch_factor: _FromOne | None = None
    steps_per_execution: _FromOne | None = None

    def values(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Space(BaseModel):
    """The values to try for each knob; a knob that is left out gets defaults."""

    model_config = VALIDATED

    batch_size: _Sizes = None
    workers: _WorkerCounts = None
    max_queue_size: _QueueSizes = None
    use_multiprocessing: _Switches = None
    prefetch_factor: _Sizes = None
    steps_per_execution: _Sizes = None

    def values(self) -> dict[str, Any]:
        """The knobs that are set, each with a range, `{"min": 8, "max": 64}`, or with choices."""
        chosen = self.model_dump(exclude_none=True)
        return {
            knob: value if isinstance(value, dict | list) else [value]
            for knob, value in chosen.items()
        }


@dataclass(frozen=True)
class SearchSpace:
    """The values of each knob, ascending with AUTOTUNE first; None for one that is not searched.

    `most_samples_ahead` is the number of samples that worker processes may hold ready in /dev/shm;
    None for no limit. `most_samples_executed` is the number of samples in an epoch, which one call
    of the train function may train on. If `whole_calls`, an epoch has that many samples because
    `steps_per_epoch` is given: calls of several steps must divide it, because Keras trains on whole
    calls only. If `zero_is_one`, `workers` 0 and 1 have the same effect, as those of a PyDataset
    have: both mean that the train step's own thread makes the batches.
    """

    batch_size: tuple[int, ...] | None = None
    workers: tuple[int, ...] | None = None
    max_queue_size: tuple[int, ...] | None = None
    use_multiprocessing: tuple[bool, ...] | None = None
    prefetch_factor: tuple[int, ...] | None = None
    steps_per_execution: tuple[int, ...] | None = None
    most_samples_ahead: int | None = None
    most_samples_executed: int | None = None
    whole_calls: bool = False
    zero_is_one: bool = True

    def knobs(self) -> dict[str, tuple[Any, ...]]:
        values = {knob: getattr(self, knob) for knob in KNOBS}
        return {knob: each for knob, each in values.items() if each is not None}

    def __contains__(self, config: FitConfig) -> bool:
        return all(
            getattr(config, knob) in values for knob, values in self.knobs().items()
        )

    def canonical(self, config: FitConfig) -> FitConfig:
        """Return one config for all equivalent ones.

        Without a queue (see `FitConfig`), few of its knobs matter.
        """
        if config.workers is None or self.workers is None or config.has_queue:
            return config
        without_effect: dict[str, Any] = {
            knob: self._usual(knob) for knob in self.knobs() if KNOBS[knob].of_queue
        }
        config = replace(config, **without_effect)
        if not self.zero_is_one:
            return config
        idle = [
            workers
            for workers in self.workers
            if not replace(config, workers=workers).has_queue
        ]
        return replace(config, workers=idle[-1]) if idle else config

    def _usual(self, knob: str) -> int | None:
        """Return Keras's default if it is a value of a knob, or else the knob's smallest number."""
        default = KNOBS[knob].default
        numbers = [value for value in getattr(self, knob) if value != AUTOTUNE]
        return numbers[0] if numbers and default not in numbers else default

    def configs(self) -> Iterable[FitConfig]:
        knobs = self.knobs()
        configs = dict[FitConfig, None]()
        for values in itertools.product(*knobs.values()):
            config = self.canonical(FitConfig.of(dict(zip(knobs, values, strict=True))))
            if config in self and self._is_useful(config):
                configs[config] = None
        return configs

    def _is_useful(self, config: FitConfig) -> bool:
        batch = config.batch_size or 1
        workers = config.workers or 0
        ahead = 0 if config.prefetch_factor is None else config.queue_batches * batch
        if ahead > (self.most_samples_ahead or math.inf):
            return False
        # More threads than the queue and two more batches keep busy are idle (measured with Keras
        # 3.15): of the numbers that are at least that, only the smallest is of use.
        queue = config.max_queue_size
        if queue is not None and queue != AUTOTUNE:
            numbers = self.workers or ()
            if any(queue + 2 <= fewer < workers for fewer in numbers):
                return False
        return self._has_whole_calls(config.steps_per_execution or 1, batch)

    def _has_whole_calls(self, steps: int, batch: int) -> bool:
        """Return whether an epoch has a call of `steps` steps, or only such calls if it must."""
        samples = self.most_samples_executed
        if steps == 1 or samples is None:
            return True
        if steps * batch > samples:
            return False
        return not self.whole_calls or math.ceil(samples / batch) % steps == 0


def cost(config: FitConfig) -> tuple[float, ...]:
    """Return a key that sorts the cheapest config first.

    AUTOTUNE may take all cores and half of the free RAM.
    """
    values = _comparable(config, idle_workers=0)
    return tuple(math.inf if value == AUTOTUNE else value or 0 for value in values)


def distance(config: FitConfig, baseline: FitConfig) -> tuple[float, ...]:
    """Return a key that sorts the config nearest to the baseline first.

    Sizes are compared in octaves (doublings).
    """
    values = _comparable(config, idle_workers=1)
    return tuple(map(octaves, values, _comparable(baseline, idle_workers=1)))


def _comparable(config: FitConfig, *, idle_workers: int) -> list[int | None]:
    """Return the values of all knobs by their rank; a switch is off if it has none.

    Without a queue, its knobs have none, and the workers are `idle_workers`.
    """
    if not config.has_queue:
        of_queue = {knob: None for knob, row in KNOBS.items() if row.of_queue}
        config = replace(config, workers=idle_workers, **of_queue)
    ranked = sorted(KNOBS, key=lambda knob: KNOBS[knob].rank)
    return [
        bool(getattr(config, knob)) if KNOBS[knob].is_switch else getattr(config, knob)
        for knob in ranked
    ]


def nearest(
    rates: Mapping[FitConfig, float], tolerance: float, baseline: FitConfig
) -> FitConfig:
    """Return the config nearest to the baseline whose rate is within `tolerance` of the highest."""
    least = (1 - tolerance) * max(rates.values())
    near = (config for config, rate in rates.items() if rate >= least)
    return min(near, key=lambda config: (distance(config, baseline), cost(config)))


def octaves(value: int | None, other: int | None) -> float:
    """Return how many octaves apart two sizes are.

    AUTOTUNE and 0 are one octave from every other size.
    """
    if value == other or value is None or other is None:
        return 0.0
    return abs(math.log2(value / other)) if min(value, other) > 0 else 1.0


def build_space(
    asked: Mapping[str, Any] | None,
    knobs: Iterable[str],
    *,
    cores: int,
    sample_count: int | None = None,
    baseline: Mapping[str, Any] | None = None,
    effective_batch_size: int | None = None,
    min_updates: int = 1,
    autotunes: bool = False,
    on_gpu: bool = False,
    has_processes: bool = False,
    replicas: int = 1,
    stacks_steps: bool = False,
) -> SearchSpace:
    """Build the search space of a workload whose input takes `knobs`.

    Args:
        asked: the user's values of each knob, as `Space.values` returns them; other knobs get
            defaults.
        cores: number of CPU cores; the default numbers of workers go up to twice that.
        sample_count: number of samples in the training data, the upper bound of default batch
            sizes; None if unknown.
        baseline: the user's present values; they are added to the defaults.
        effective_batch_size: number of samples in one weight update; only batch sizes that divide
            it are allowed.
        min_updates: fewest full batches in an epoch, if `sample_count` is known; the baseline's
            batch size may leave fewer, and so may a list of choices. Without effect if
            `effective_batch_size` fixes the number of updates.
        autotunes: whether the data takes AUTOTUNE, as `tf.data` does; the defaults then include it.
        on_gpu: whether the model trains on a GPU; small models need large batches to saturate it.
        has_processes: whether the workers are always processes, as in a torch DataLoader, so that 0
            and 1 differ.
        replicas: number of devices that share each batch evenly; batch sizes are multiples of it.
        stacks_steps: whether one program takes all batches of a call, so that more steps in a call
            may pay on a GPU.
    """
    asked = asked or {}
    present = baseline or {}
    taken = tuple(knobs)
    _require_taken(asked, taken)
    defaults: dict[str, Iterable[int]] = {
        knob: row.values for knob, row in KNOBS.items()
    }
    largest = replicas * (_LARGEST_GPU_BATCH if on_gpu else _LARGEST_BATCH)
    defaults["batch_size"] = batch_grid(
        1, min(largest, sample_count or largest), replicas
    )
    defaults["workers"] = _default_workers(cores, has_processes=has_processes)
    if stacks_steps and on_gpu:
        defaults[STEPS_PER_EXECUTION] = (
            *KNOBS[STEPS_PER_EXECUTION].values,
            STACKED_STEPS,
        )
    values = dict[str, Any]()
    for knob in taken:
        if knob in asked:
            values[knob] = _values(
                knob, asked[knob], autotunes=autotunes, replicas=replicas
            )
            continue
        added = [present[knob]] if knob in present else []
        if autotunes and KNOBS[knob].autotunes:
            added.append(AUTOTUNE)
        values[knob] = tuple(sorted({*defaults[knob], *added}))
    sizes = values.get("batch_size")
    if sizes == ():
        raise UsageError(
            f"{sample_count} samples are too few for {replicas} devices that share each batch; "
            "use fewer devices",
            key="device",
        )
    is_listed = isinstance(asked.get("batch_size"), list)
    if effective_batch_size is not None:
        values["batch_size"] = _divisors(effective_batch_size, sizes, replicas)
    elif sample_count is not None and min_updates > 1 and sizes and not is_listed:
        most = sample_count // min_updates // replicas * replicas
        present_size = present.get("batch_size", KERAS_DEFAULTS.batch_size)
        values["batch_size"] = _leaving_updates(sizes, most, present_size)
    return SearchSpace(**values)


def _default_workers(cores: int, *, has_processes: bool) -> set[int]:
    """Return the usual numbers of workers, up to twice the cores; 0 only of processes."""
    most = max(2, min(_WORKERS[-1], 2 * cores))
    return {*_WORKERS, cores}.intersection(range(int(not has_processes), most + 1))


def _require_taken(asked: Iterable[str], taken: Sequence[str]) -> None:
    """Raise UsageError if a knob is asked for that the data does not take, or if it takes none."""
    for knob in asked:
        if knob not in taken:
            raise UsageError(
                f"{knob} is given, but the data does not take it "
                f"(it takes {', '.join(taken) or 'no knob'}); "
                f"add a parameter {knob} to the data factory, or remove {knob} from the space",
                key="space",
            )
    if not taken:
        raise UsageError("nothing to tune: the space has no knob, such as batch_size")


def _leaving_updates(
    sizes: tuple[int, ...], most: int, present: int
) -> tuple[int, ...]:
    """Return the batch sizes up to `most`, and the present one.

    Without any up to `most`, they are those up to the present one.
    """
    allowed = {size for size in sizes if size <= most or size == present}
    if sizes[0] <= most <= sizes[-1]:
        allowed.add(most)
    if not any(size <= most for size in allowed):
        allowed |= {size for size in sizes if size <= present}
    return tuple(sorted(allowed)) or sizes[:1]


def _divisors(
    effective: int, sizes: tuple[int, ...] | None, replicas: int
) -> tuple[int, ...]:
    if sizes is None:
        raise UsageError(
            f"{effective} is given, but the data does not take batch_size; "
            "add a parameter batch_size to the data factory, or remove effective_batch_size",
            key="effective_batch_size",
        )
    within = range(sizes[0], min(effective, sizes[-1]) + 1)
    divisors = tuple(b for b in within if effective % b == 0 and b % replicas == 0)
    if not divisors:
        shared = f" and can be shared by {replicas} devices" if replicas > 1 else ""
        raise UsageError(
            f"no batch size from {sizes[0]} to {sizes[-1]} divides the effective batch size "
            f"{effective}{shared}",
            key="space",
        )
    return divisors


def _values(
    knob: str, asked: list[Any] | dict[str, int], *, autotunes: bool, replicas: int
) -> tuple[Any, ...]:
    """Return the values to try of a knob, given a range or a list of choices."""
    key = f"space.{knob}"
    choices = [*asked.values()] if isinstance(asked, dict) else asked
    if not autotunes and AUTOTUNE in choices:
        raise UsageError(f"{asked!r} is not allowed: {NO_AUTOTUNE}", key=key)
    uneven = [str(size) for size in choices if size % replicas]
    if knob == "batch_size" and isinstance(asked, dict):
        choices = batch_grid(asked["min"], asked["max"], replicas)
        if not choices:
            raise UsageError(
                f"the range {asked!r} contains no multiple of {replicas}, the number of devices",
                key=key,
            )
    elif isinstance(asked, dict):
        powers = [2**k for k in range(12)]
        choices += [power for power in powers if asked["min"] <= power <= asked["max"]]
    elif knob == "batch_size" and uneven:
        raise UsageError(
            f"{replicas} devices cannot share batches of {', '.join(uneven)} evenly; "
            f"batch_size is the total of all devices, so give multiples of {replicas}",
            key=key,
        )
    return tuple(sorted(set(choices)))


def batch_grid(lowest: int, highest: int, replicas: int = 1) -> list[int]:
    """Return the batch sizes to try between `lowest` and `highest`, both included.

    These are powers of two, 3, 6, 12, multiples of 8 up to 128, and from there on eight sizes per
    doubling. Hardware works in tiles of 16, 32 or 64 samples, and steps of an eighth leave little
    of a memory limit unused. With `replicas`, the grid applies to each device, and the returned
    sizes are totals of all devices.
    """
    low = math.ceil(lowest / replicas)
    high = highest // replicas
    grid = {low, high, 3, 6, 12, *(2**k for k in range(32)), *range(8, 129, 8)}
    for power in range(7, 31):
        grid.update(range(2**power, 2 ** (power + 1), 2 ** (power - 3)))
    return [replicas * size for size in sorted(grid) if low <= size <= high]
