"""Build the search space, list its configs, and compare them by cost and by distance to the baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import make_dataclass, replace
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from autofit.errors import UsageError
from autofit.records.knobs import KNOBS, STACKED_STEPS, STEPS_PER_EXECUTION, KnobRow
from autofit.records.trial import AUTOTUNE, KERAS_DEFAULTS, FitConfig
from autofit.workload.arguments import written_as
from autofit.workload.inputs.knobs import NO_AUTOTUNE

VALIDATED = ConfigDict(extra="forbid", strict=True, frozen=True)  # how pydantic validates arguments

TOLERANCE = 0.02  # relative gain below which configs count as equally fast, by default

_AUTOTUNE_NAMES = ("auto", "autotune", "tf.data.autotune")
_LARGEST_BATCH, _LARGEST_GPU_BATCH = (
    4096,
    2**16,
)  # samples; larger batches are tried only if the user's space has them
_WORKERS = (0, 1, 2, 4, 8, 16)  # numbers that are tried, with that of the cores


class Range(BaseModel):
    """A range of whole numbers, both ends included."""

    model_config = VALIDATED

    min: int
    max: int

    @model_validator(mode="after")
    def _ascending(self) -> Range:
        if self.min > self.max:
            raise ValueError("min is larger than max")
        return self


_AUTOTUNE = BeforeValidator(
    lambda value: (
        AUTOTUNE if isinstance(value, str) and value.lower() in _AUTOTUNE_NAMES else value
    ),
    json_schema_input_type=int
    | Annotated[str, Field(pattern=r"^(auto|AUTOTUNE|tf\.data\.AUTOTUNE)$")],
)
_CHOICES = 'write one value, choices ([8, 16, 1024]) or a range ({"min": 8, "max": 1024})'


def _type_of(row: KnobRow, *, autotunes: bool) -> Any:
    """Return the type of one value of a knob."""
    if isinstance(row.default, bool):
        return bool

    def checked(value: int) -> int:
        if value < row.lowest and not (autotunes and value == AUTOTUNE):
            raise ValueError(
                f"give a whole number from {row.lowest} on{', or -1 (tf.data.AUTOTUNE)' * autotunes}"
            )
        return value

    number = Annotated[int, AfterValidator(checked)]
    return Annotated[number, _AUTOTUNE] if autotunes else number


def _asked_type(row: KnobRow) -> Any:
    """Return the type of the values to try of a knob."""
    value, number = _type_of(row, autotunes=row.autotunes), _type_of(row, autotunes=False)
    several = Annotated[list[value], Field(min_length=1)]  # type: ignore[valid-type]  # made for each knob
    if value is bool:
        return Annotated[several | bool | None, written_as("write true, false or a list of them")]
    interval: Any = create_model("Range", __base__=Range, min=(number, ...), max=(number, ...))
    return Annotated[interval | several | value | None, written_as(_CHOICES)]


_ASKED: dict[str, Any] = {knob: (_asked_type(row), None) for knob, row in KNOBS.items()}
_ONE_EACH: dict[str, Any] = {
    knob: (_type_of(row, autotunes=row.autotunes) | None, None) for knob, row in KNOBS.items()
}
_Asked: Any = create_model("Knobs", **_ASKED)
_OneEach: Any = create_model("Knobs", **_ONE_EACH)


class Baseline(_OneEach):
    """The config to compare with; a knob that is left out has the value that the data gives it, or Keras's default."""

    model_config = VALIDATED

    def values(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Space(_Asked):
    """The values to try for each knob; a knob that is left out gets defaults."""

    model_config = VALIDATED

    def values(self) -> dict[str, Any]:
        """The knobs that are set: for each a range, `{"min": 8, "max": 64}`, or a list of choices."""
        chosen = self.model_dump(exclude_none=True)
        return {
            knob: value if isinstance(value, dict | list) else [value]
            for knob, value in chosen.items()
        }


_FIELDS: list[tuple[str, Any, Any]] = [
    *((knob, tuple[Any, ...] | None, None) for knob in KNOBS),
    ("most_samples_ahead", int | None, None),
    ("most_samples_executed", int | None, None),
    ("whole_calls", bool, False),
    ("zero_is_one", bool, True),
]


class SearchSpace(make_dataclass("Knobs", _FIELDS, frozen=True)):  # type: ignore[misc]  # as of `Space`
    """The values of each knob, in ascending order with AUTOTUNE first; None for a knob that is not searched.

    `most_samples_ahead` is the number of samples that worker processes may hold ready in /dev/shm; None for no limit.
    `most_samples_executed` is the number of samples in an epoch, which one call of the train function may train on. If
    `whole_calls`, an epoch has that many samples because `steps_per_epoch` is given: calls of several steps must divide it,
    because Keras trains on whole calls only. If `zero_is_one`, `workers` 0 and 1 have the same effect, as those of a
    PyDataset have: both mean that the train step's own thread makes the batches.
    """

    def knobs(self) -> dict[str, tuple[Any, ...]]:
        return {knob: getattr(self, knob) for knob in KNOBS if getattr(self, knob) is not None}

    def __contains__(self, config: FitConfig) -> bool:
        return all(getattr(config, knob) in values for knob, values in self.knobs().items())

    def canonical(self, config: FitConfig) -> FitConfig:
        """Return one config for all equivalent ones: without a queue (see `FitConfig`), few of its knobs matter."""
        if config.workers is None or self.workers is None or config.has_queue:
            return config
        for knob in (knob for knob in self.knobs() if KNOBS[knob].of_queue):
            default, numbers = (
                KNOBS[knob].default,
                [value for value in getattr(self, knob) if value != AUTOTUNE],
            )
            changed: dict[str, Any] = {
                knob: default if default in numbers or not numbers else numbers[0]
            }
            config = replace(config, **changed)
        if not self.zero_is_one:
            return config
        idle = [
            workers for workers in self.workers if not replace(config, workers=workers).has_queue
        ]
        return replace(config, workers=idle[-1]) if idle else config

    def configs(self) -> Iterable[FitConfig]:
        knobs = self.knobs()
        products = itertools.product(*knobs.values())
        configs = (
            self.canonical(FitConfig.of(dict(zip(knobs, values, strict=True))))
            for values in products
        )
        return dict.fromkeys(
            config for config in configs if config in self and self._is_useful(config)
        )

    def _is_useful(self, config: FitConfig) -> bool:
        batch, steps, samples = (
            config.batch_size or 1,
            config.steps_per_execution or 1,
            self.most_samples_executed,
        )
        ahead = 0 if config.prefetch_factor is None else config.queue_batches * batch
        is_long = steps > 1 and samples is not None and steps * batch > samples
        is_cut = (
            steps > 1
            and samples is not None
            and self.whole_calls
            and math.ceil(samples / batch) % steps > 0
        )
        # workers beyond max_queue_size + 2 are never busy (measured with Keras 3.15): of the numbers that are at
        # least that, only the smallest is of use
        busy = math.inf if config.max_queue_size in (None, AUTOTUNE) else config.max_queue_size + 2
        are_idle = any(busy <= fewer < (config.workers or 0) for fewer in self.workers or ())
        return ahead <= (self.most_samples_ahead or math.inf) and not (
            is_long or is_cut or are_idle
        )


def cost(config: FitConfig) -> tuple[Any, ...]:
    """Return a key that sorts the cheapest config first; AUTOTUNE may take all cores and half of the free RAM."""
    steps = config.steps_per_execution or 1
    if not config.has_queue:
        return config.batch_size or 0, 0, 0, 0, steps
    queue_size = config.max_queue_size if config.prefetch_factor is None else config.queue_batches
    workers, queue = (
        math.inf if value == AUTOTUNE else value or 0 for value in (config.workers, queue_size)
    )
    return config.batch_size or 0, workers, int(config.use_multiprocessing or 0), queue, steps


def distance(config: FitConfig, baseline: FitConfig) -> tuple[float, ...]:
    """Return a key that sorts the config nearest to the baseline first; sizes are compared in octaves (doublings)."""
    steps = octaves(config.steps_per_execution, baseline.steps_per_execution)
    config, baseline = (
        c if c.has_queue else FitConfig(c.batch_size, 1) for c in (config, baseline)
    )
    queue_sizes = (c.max_queue_size or c.prefetch_factor for c in (config, baseline))
    return (
        octaves(config.batch_size, baseline.batch_size),
        octaves(config.workers, baseline.workers),
        float(bool(config.use_multiprocessing) != bool(baseline.use_multiprocessing)),
        octaves(*queue_sizes),
        steps,
    )


def nearest(rates: Mapping[FitConfig, float], tolerance: float, baseline: FitConfig) -> FitConfig:
    """Return the config nearest to the baseline among those whose rate is within `tolerance` of the highest."""
    least = (1 - tolerance) * max(rates.values())
    near = (config for config, rate in rates.items() if rate >= least)
    return min(near, key=lambda config: (distance(config, baseline), cost(config)))


def octaves(value: int | None, other: int | None) -> float:
    """Return how many octaves apart two sizes are; AUTOTUNE and 0 are one octave from every other size."""
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
        asked: the user's values of each knob, as `Space.values` returns them; other knobs get defaults.
        cores: number of CPU cores; the default numbers of workers go up to twice that.
        sample_count: number of samples in the training data, the upper bound of default batch sizes; None if unknown.
        baseline: the user's present values; they are added to the defaults.
        effective_batch_size: number of samples in one weight update; only batch sizes that divide it are allowed.
        min_updates: fewest full batches in an epoch, if `sample_count` is known; the baseline's batch size may leave fewer,
            and so may a list of choices. Without effect if `effective_batch_size` fixes the number of updates.
        autotunes: whether the data takes AUTOTUNE, as `tf.data` does; the defaults then include it.
        on_gpu: whether the model trains on a GPU; small models need large batches to saturate it.
        has_processes: whether the workers are always processes, as in a torch DataLoader, so that 0 and 1 differ.
        replicas: number of devices that share each batch evenly; batch sizes are multiples of it.
        stacks_steps: whether one program takes all batches of a call, so that more steps in a call
        may pay on a GPU.
    """
    asked, taken, present = (
        asked or {},
        tuple(knobs),
        {knob: [value] for knob, value in (baseline or {}).items()},
    )
    if unknown := next((knob for knob in asked if knob not in taken), None):
        raise UsageError(
            f"{unknown} is given, but the data does not take it (it takes {', '.join(taken) or 'no knob'}); "
            f"add a parameter {unknown} to the data factory, or remove {unknown} from the space",
            key="space",
        )
    if not taken:
        raise UsageError("nothing to tune: the space has no knob, such as batch_size")
    largest = replicas * (_LARGEST_GPU_BATCH if on_gpu else _LARGEST_BATCH)
    least_workers, most_workers = int(not has_processes), max(2, min(_WORKERS[-1], 2 * cores))
    defaults: dict[str, Iterable[int]] = {
        **{knob: row.values for knob, row in KNOBS.items()},
        "batch_size": batch_grid(1, min(largest, sample_count or largest), replicas),
        "workers": (w for w in (*_WORKERS, cores) if least_workers <= w <= most_workers),
    }
    if stacks_steps and on_gpu:
        defaults[STEPS_PER_EXECUTION] = (*KNOBS[STEPS_PER_EXECUTION].values, STACKED_STEPS)
    automatic = [knob for knob, row in KNOBS.items() if autotunes and row.autotunes]
    further = {knob: [AUTOTUNE] * (knob in automatic) + present.get(knob, []) for knob in taken}
    values: dict[str, Any] = {
        knob: tuple(sorted({*defaults[knob], *further[knob]})) for knob in taken
    }
    values |= {
        knob: _values(knob, asked[knob], autotunes=autotunes, replicas=replicas) for knob in asked
    }
    if "batch_size" in values and not values["batch_size"]:
        raise UsageError(
            f"{sample_count} samples are too few for {replicas} devices that share each batch; use fewer devices",
            key="device",
        )
    is_listed = isinstance(asked.get("batch_size"), list)
    if effective_batch_size is not None:
        values["batch_size"] = _divisors(effective_batch_size, values.get("batch_size"), replicas)
    elif sample_count is not None and min_updates > 1 and "batch_size" in values and not is_listed:
        (present_batch,) = present.get("batch_size", [KERAS_DEFAULTS.batch_size])
        most = sample_count // min_updates // replicas * replicas
        values["batch_size"] = _leaving_updates(values["batch_size"], most, present_batch)
    return SearchSpace(**values)


def _leaving_updates(sizes: tuple[int, ...], most: int, present: int) -> tuple[int, ...]:
    """Return the batch sizes up to `most`, and the present one; without any up to `most`, those up to the present one."""
    allowed = {b for b in sizes if b <= most or b == present}
    if sizes[0] <= most <= sizes[-1]:
        allowed.add(most)
    if not any(b <= most for b in allowed):
        allowed |= {b for b in sizes if b <= present}
    return tuple(sorted(allowed)) or sizes[:1]


def _divisors(effective: int, sizes: tuple[int, ...] | None, replicas: int) -> tuple[int, ...]:
    if sizes is None:
        raise UsageError(
            f"{effective} is given, but the data does not take batch_size; add a parameter batch_size to the data factory, "
            "or remove effective_batch_size",
            key="effective_batch_size",
        )
    within = range(sizes[0], min(effective, sizes[-1]) + 1)
    divisors = tuple(b for b in within if effective % b == 0 and b % replicas == 0)
    if not divisors:
        shared = f" and can be shared by {replicas} devices" if replicas > 1 else ""
        raise UsageError(
            f"no batch size from {sizes[0]} to {sizes[-1]} divides the effective batch size {effective}{shared}",
            key="space",
        )
    return divisors


def _values(knob: str, asked: Any, *, autotunes: bool, replicas: int) -> tuple[Any, ...]:
    key, is_range = f"space.{knob}", isinstance(asked, dict)
    values = [asked["min"], asked["max"]] if is_range else asked
    if not autotunes and AUTOTUNE in values:
        raise UsageError(f"{asked!r} is not allowed: {NO_AUTOTUNE}", key=key)
    if is_range and knob == "batch_size":
        values = batch_grid(values[0], values[1], replicas)
        if not values:
            raise UsageError(
                f"the range {asked!r} contains no multiple of {replicas}, the number of devices",
                key=key,
            )
    elif is_range:
        values += [2**k for k in range(12) if values[0] <= 2**k <= values[1]]
    elif knob == "batch_size" and (uneven := [b for b in values if b % replicas]):
        raise UsageError(
            f"{replicas} devices cannot share batches of {', '.join(map(str, uneven))} evenly; batch_size is the total "
            f"of all devices, so give multiples of {replicas}",
            key=key,
        )
    return tuple(sorted(set(values)))


def batch_grid(lowest: int, highest: int, replicas: int = 1) -> list[int]:
    """Return the batch sizes to try between `lowest` and `highest`, both included.

    These are powers of two, 3, 6, 12, multiples of 8 up to 128, and from there on eight sizes per doubling. Hardware works
    in tiles of 16, 32 or 64 samples, and steps of an eighth leave little of a memory limit unused. With `replicas`, the
    grid applies to each device, and the returned sizes are totals of all devices.
    """
    low, high = math.ceil(lowest / replicas), highest // replicas
    grid = {low, high, 3, 6, 12, *(2**k for k in range(32)), *range(8, 129, 8)}
    grid |= {
        size
        for power in range(7, 31)
        for size in range(2**power, 2 ** (power + 1), 2 ** (power - 3))
    }
    return [replicas * size for size in sorted(grid) if low <= size <= high]
