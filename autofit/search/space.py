"""Build the search space, list its configs, and compare them by cost and by distance to the baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from autofit.errors import UsageError
from autofit.records.knobs import KNOBS
from autofit.records.trial import AUTOTUNE, KERAS_DEFAULTS, FitConfig
from autofit.workload.arguments import written_as
from autofit.workload.inputs.knobs import NO_AUTOTUNE

VALIDATED = ConfigDict(extra="forbid", strict=True, frozen=True)
"""How pydantic validates arguments."""

_AUTOTUNE_NAMES = ("auto", "autotune", "tf.data.autotune")
_LARGEST_BATCH, _LARGEST_GPU_BATCH = 4096, 2**16  # samples; larger batches are tried only if the user's space has them
_MOST_WORKERS = 16


def _autotune(value: Any) -> Any:
    """Convert the names of AUTOTUNE to its number."""
    return AUTOTUNE if isinstance(value, str) and value.lower() in _AUTOTUNE_NAMES else value


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


AutotunedValue = Annotated[
    int,
    BeforeValidator(
        _autotune,
        json_schema_input_type=int | Annotated[str, Field(pattern=r"^(auto|AUTOTUNE|tf\.data\.AUTOTUNE)$")],
    ),
]
_OneOrMore = Field(min_length=1)
_FORM = written_as('write one value, choices ([8, 16, 1024]) or a range ({"min": 8, "max": 1024})')
_IntegerValues = Annotated[Range | Annotated[list[int], _OneOrMore] | int | None, _FORM]
_BooleanValues = Annotated[
    Annotated[list[bool], _OneOrMore] | bool | None, written_as("write true, false or a list of them")
]
_AutotunedValues = Annotated[Range | Annotated[list[AutotunedValue], _OneOrMore] | AutotunedValue | None, _FORM]


class Space(BaseModel):
    """The values to try for each knob; a knob that is left out gets defaults."""

    model_config = VALIDATED

    batch_size: _IntegerValues = None
    workers: _AutotunedValues = None
    max_queue_size: _AutotunedValues = None
    use_multiprocessing: _BooleanValues = None
    prefetch_factor: _IntegerValues = None
    steps_per_execution: _IntegerValues = None

    def values(self) -> dict[str, Any]:
        """The knobs that are set: for each a range, `{"min": 8, "max": 64}`, or a list of choices."""
        chosen = self.model_dump(exclude_none=True)
        return {knob: value if isinstance(value, dict | list) else [value] for knob, value in chosen.items()}


@dataclass(frozen=True)
class SearchSpace:
    """The values of each knob, in ascending order with AUTOTUNE first; None for a knob that is not searched.

    `most_samples_ahead` is the number of samples that worker processes may hold ready in /dev/shm; None for no limit.
    `most_samples_executed` is the number of samples in an epoch, which one call of the train function may train on. If
    `whole_calls`, an epoch has that many samples because `steps_per_epoch` is given: calls of several steps must divide it,
    because Keras trains on whole calls only.
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

    def knobs(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each knob that is searched."""
        return {knob: getattr(self, knob) for knob in KNOBS if getattr(self, knob) is not None}

    def __contains__(self, config: FitConfig) -> bool:
        return all(getattr(config, knob) in values for knob, values in self.knobs().items())

    def canonical(self, config: FitConfig) -> FitConfig:
        """Return one config for all equivalent ones: without a queue (see `FitConfig`), only the batch size matters."""
        if config.workers is None or self.workers is None or config.has_queue:
            return config
        queue = config.max_queue_size
        processes = self.use_multiprocessing[0] if self.use_multiprocessing else config.use_multiprocessing
        if self.max_queue_size is not None:
            default, numbers = KERAS_DEFAULTS.max_queue_size, [q for q in self.max_queue_size if q != AUTOTUNE]
            queue = default if default in numbers or not numbers else numbers[0]
        idle = [w for w in self.workers if not FitConfig(workers=w, use_multiprocessing=processes).has_queue]
        workers = idle[-1] if idle else config.workers
        factor = self.prefetch_factor[0] if self.prefetch_factor else config.prefetch_factor
        return replace(config, workers=workers, max_queue_size=queue, use_multiprocessing=processes, prefetch_factor=factor)

    def configs(self) -> Iterator[FitConfig]:
        """Yield every config of the space once, in canonical form.

        Workers beyond `max_queue_size + 2` are never busy (measured: see tests/trial/test_keras_facts.py). Of the worker
        counts that are at least `max_queue_size + 2`, only the smallest is used.
        """
        knobs = self.knobs()
        seen = set()
        for values in itertools.product(*knobs.values()):
            config = self.canonical(FitConfig.of(dict(zip(knobs, values, strict=True))))
            if config in self and self._has_room(config) and config not in seen and not self._has_idle_workers(config):
                seen.add(config)
                yield config

    def _has_room(self, config: FitConfig) -> bool:
        batch = config.batch_size or 1
        ahead = 0 if config.prefetch_factor is None else config.queue_batches * batch
        return ahead <= (self.most_samples_ahead or math.inf) and self._suits_epoch(config.steps_per_execution or 1, batch)

    def _suits_epoch(self, steps: int, batch: int) -> bool:
        samples = self.most_samples_executed
        if steps == 1 or samples is None:
            return True
        return steps * batch <= samples and not (self.whole_calls and math.ceil(samples / batch) % steps)

    def _has_idle_workers(self, config: FitConfig) -> bool:
        if not config.has_queue or config.max_queue_size in (None, AUTOTUNE) or self.workers is None:
            return False
        return any(config.max_queue_size + 2 <= fewer < (config.workers or 0) for fewer in self.workers)


def cost(config: FitConfig) -> tuple[Any, ...]:
    """Return a key that sorts the cheapest config first: by batch size, workers, threads before processes, queue, steps.

    AUTOTUNE comes after every number, because it may take all cores and half of the free RAM.
    """
    steps = config.steps_per_execution or 1
    if not config.has_queue:
        return config.batch_size or 0, 0, 0, 0, steps
    queue_size = config.max_queue_size if config.prefetch_factor is None else config.queue_batches
    workers, queue = (math.inf if value == AUTOTUNE else value or 0 for value in (config.workers, queue_size))
    return config.batch_size or 0, workers, int(config.use_multiprocessing or 0), queue, steps


def distance(config: FitConfig, baseline: FitConfig) -> tuple[float, ...]:
    """Return a key that sorts the config nearest to the baseline first.

    It sorts by batch size, workers, processes, queue and steps. Sizes are compared in octaves (doublings). Workers and
    queue size count only with a queue (`FitConfig.has_queue`).
    """
    steps = octaves(config.steps_per_execution, baseline.steps_per_execution)
    config, baseline = (c if c.has_queue else FitConfig(c.batch_size, 1) for c in (config, baseline))
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
    sample_count: int | None,
    baseline: Mapping[str, Any] | None = None,
    effective_batch_size: int | None = None,
    min_updates: int = 1,
    autotunes: bool = False,
    on_gpu: bool = False,
    has_processes: bool = False,
    replicas: int = 1,
) -> SearchSpace:
    """Build the search space of a workload whose input takes `knobs`.

    Args:
        asked: the user's values of each knob, as `Space.values` returns them; other knobs get defaults.
        cores: number of CPU cores; the default numbers of workers go up to twice that.
        sample_count: number of samples in the training data, the upper bound of default batch sizes; None if unknown.
        baseline: the user's present values; they are added to the defaults.
        effective_batch_size: number of samples in one weight update; only batch sizes that divide it are allowed.
        min_updates: fewest full batches in an epoch; batch sizes that leave fewer are excluded, except for the baseline's.
            Ignored if `sample_count` is unknown, or if `effective_batch_size` fixes the number of updates.
        autotunes: whether the data takes AUTOTUNE, as `tf.data` does; the defaults then include it.
        on_gpu: whether the model trains on a GPU; small models need large batches to saturate it.
        has_processes: whether the workers are always processes, as in a torch DataLoader, so that 0 and 1 differ.
        replicas: number of devices that share each batch evenly; batch sizes are multiples of it.
    """
    asked, taken = asked or {}, tuple(knobs)
    for knob in asked:
        if knob not in taken:
            raise UsageError(
                f"{knob} is given, but the data does not take it (it takes {', '.join(taken) or 'no knob'}); "
                f"add a parameter {knob} to the data factory, or remove {knob} from the space",
                key="space",
            )
    if not taken:
        raise UsageError(
            "nothing to tune: the data factory takes none of the knobs; "
            "add a parameter batch_size (and workers, max_queue_size, use_multiprocessing) to it"
        )
    largest = replicas * (_LARGEST_GPU_BATCH if on_gpu else _LARGEST_BATCH)
    largest = min(largest, sample_count or largest)
    workers = {1, *(2**k for k in range(1, 5)), cores}
    defaults: dict[str, Sequence[int]] = {
        **{knob: row.values for knob, row in KNOBS.items()},
        "batch_size": batch_grid(1, largest, replicas),
        "workers": [0] * has_processes + sorted(w for w in workers if w <= max(2, min(_MOST_WORKERS, 2 * cores))),
    }
    if autotunes:
        defaults |= {knob: (AUTOTUNE, *defaults[knob]) for knob, row in KNOBS.items() if row.autotunes}
    present = {knob: [baseline[knob]] if baseline and knob in baseline else [] for knob in taken}
    values: dict[str, Any] = {knob: tuple(sorted({*defaults[knob], *present[knob]})) for knob in taken}
    values |= {knob: _values(knob, asked[knob], autotunes=autotunes, replicas=replicas) for knob in asked}
    if "batch_size" not in values:
        if effective_batch_size is not None:
            raise UsageError(
                f"{effective_batch_size} is given, but the data does not take batch_size; add a parameter batch_size to "
                "the data factory, or remove effective_batch_size",
                key="effective_batch_size",
            )
        return SearchSpace(**values)
    if not values["batch_size"]:
        raise UsageError(
            f"{sample_count} samples are too few for {replicas} devices that share each batch; use fewer devices",
            key="device",
        )
    if effective_batch_size is not None:
        values["batch_size"] = _divisors(effective_batch_size, values["batch_size"], replicas)
    elif sample_count is not None and min_updates > 1:
        present_batch = (baseline or {}).get("batch_size", KERAS_DEFAULTS.batch_size)
        largest = sample_count // min_updates // replicas * replicas
        values["batch_size"] = _leaving_updates(values["batch_size"], largest, present_batch, asked.get("batch_size"))
    return SearchSpace(**values)


def _leaving_updates(values: Sequence[int], largest: int, present: int, asked: Any) -> tuple[int, ...]:
    """Return the batch sizes up to `largest`, and the present batch size if it is among the values.

    If every size is above `largest`, return the sizes up to the present one instead, or the smallest size if every size is
    also above the present one.
    """
    allowed = {b for b in values if b <= largest or b == present}
    if not isinstance(asked, list) and values[0] <= largest <= values[-1]:
        allowed.add(largest)
    if not any(b <= largest for b in allowed):
        allowed |= {b for b in values if b <= present}
    return tuple(sorted(allowed or values[:1]))


def _divisors(effective: int, sizes: Sequence[int], replicas: int) -> tuple[int, ...]:
    """Return the divisors of an effective batch size that are multiples of `replicas` and in the range of `sizes`."""
    first = max(replicas, math.ceil(sizes[0] / replicas) * replicas)
    divisors = tuple(b for b in range(first, min(effective, sizes[-1]) + 1, replicas) if effective % b == 0)
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
    row, others = KNOBS[knob], (AUTOTUNE,) if KNOBS[knob].autotunes and not is_range else ()
    if not autotunes and any(v in others for v in values):
        raise UsageError(f"{asked!r} is not allowed: {NO_AUTOTUNE}", key=key)
    if not all(v >= row.lowest or v in others for v in values):
        allowed = f"integers of at least {row.lowest}" + ", or -1 (tf.data.AUTOTUNE)" * (autotunes and row.autotunes)
        raise UsageError(f"{asked!r} is not allowed; give {allowed}", key=key)
    if not is_range:
        if knob == "batch_size" and (uneven := [b for b in values if b % replicas]):
            raise UsageError(
                f"{replicas} devices cannot share batches of {', '.join(map(str, uneven))} evenly; batch_size is the total "
                f"of all devices, so give multiples of {replicas}",
                key=key,
            )
        return tuple(sorted(set(values)))
    if knob == "batch_size":
        sizes = tuple(batch_grid(values[0], values[1], replicas))
        if not sizes:
            raise UsageError(f"the range {asked!r} contains no multiple of {replicas}, the number of devices", key=key)
        return sizes
    return tuple(sorted({values[0], values[1], *(2**k for k in range(12) if values[0] <= 2**k <= values[1])}))


def batch_grid(lowest: int, highest: int, replicas: int = 1) -> list[int]:
    """Return the batch sizes to try between `lowest` and `highest`, both included.

    These are powers of two, 3, 6, 12, multiples of 8 up to 128, and from there on eight sizes per doubling. Hardware works
    in tiles of 16, 32 or 64 samples, and steps of an eighth leave little of a memory limit unused. With `replicas`, the
    grid applies to each device, and the returned sizes are totals of all devices.
    """
    if replicas > 1:
        on_each = math.ceil(lowest / replicas), highest // replicas
        return [replicas * size for size in batch_grid(*on_each)] if on_each[0] <= on_each[1] else []
    grid = {2**k for k in range(32)} | {3, 6, 12} | set(range(8, 129, 8))
    for power in range(7, 31):
        grid |= set(range(2**power, 2 ** (power + 1), 2 ** (power - 3)))
    return sorted({lowest, highest, *(b for b in grid if lowest <= b <= highest)})
