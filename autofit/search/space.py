"""The search space: which configs are legal, which are the same point, which a known OOM condemns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autofit.errors import UsageError
from autofit.records.trial import KNOBS, FitConfig, Outcome
from autofit.search.config_arrays import ConfigArrays, Mask

KERAS_DEFAULTS = FitConfig(batch_size=32, workers=1, max_queue_size=10, use_multiprocessing=False)
"""What Keras does when nothing is said (`Model.fit` and `PyDataset.__init__`, Keras 3.15)."""

_LARGEST_BATCH = 4096
_MOST_WORKERS = 16
_QUEUES = (2, 4, 10, 32)


@dataclass(frozen=True)
class SearchSpace:
    """The values that each knob may take, ascending; None for a knob that is not searched."""

    batch_size: tuple[int, ...] | None = None
    workers: tuple[int, ...] | None = None
    max_queue_size: tuple[int, ...] | None = None
    use_multiprocessing: tuple[bool, ...] | None = None

    def knobs(self) -> dict[str, tuple[int, ...]]:
        """The knobs that are searched, with their values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def __contains__(self, config: FitConfig) -> bool:
        return all(getattr(config, knob) in values for knob, values in self.knobs().items())

    def canonical(self, config: FitConfig) -> FitConfig:
        """The config that stands for all that have no queue (`FitConfig.has_queue`) and are one point with this batch size.

        There `workers` is 0 or 1, and neither `max_queue_size` nor what workers are matters.
        """
        if config.workers is None or self.workers is None or config.has_queue:
            return config
        processes, queue = config.use_multiprocessing, config.max_queue_size
        if self.use_multiprocessing is not None:
            processes = self.use_multiprocessing[0]
        if self.max_queue_size is not None:
            default = KERAS_DEFAULTS.max_queue_size
            queue = default if default in self.max_queue_size else self.max_queue_size[0]
        idle = [w for w in self.workers if not FitConfig(workers=w, use_multiprocessing=processes).has_queue]
        workers = idle[-1] if idle else config.workers
        return FitConfig(config.batch_size, workers, queue, processes)

    def configs(self) -> Iterator[FitConfig]:
        """Every point of the space once, in canonical form.

        A worker beyond `max_queue_size + 2` is never busy (measured: see tests/trial/test_keras_facts.py), so that of the
        settings with as many or more only the smallest is a point.
        """
        knobs = self.knobs()
        seen = set()
        for values in itertools.product(*knobs.values()):
            config = self.canonical(FitConfig.of(dict(zip(knobs, values, strict=True))))
            if config in self and config not in seen and not self._has_idle_workers(config):
                seen.add(config)
                yield config

    def _has_idle_workers(self, config: FitConfig) -> bool:
        if not config.has_queue or config.max_queue_size is None or self.workers is None:
            return False
        return any(config.max_queue_size + 2 <= fewer < (config.workers or 0) for fewer in self.workers)


def dominated_by(arrays: ConfigArrays, oom_config: FitConfig, outcome: Outcome) -> Mask:
    """Which configs cannot fit either, given an OOM at one config.

    Memory grows with every knob. Device memory is a matter of the batch alone; host memory also of workers, processes
    and queue, so that a host OOM condemns what is at least as large in all of them.
    """
    full = ConfigArrays.of([oom_config])
    larger = arrays.batch >= full.batch
    if outcome is Outcome.HOST_OOM:
        larger &= (arrays.workers >= full.workers) & (arrays.processes >= full.processes) & (arrays.queue >= full.queue)
    return larger if outcome.is_oom else np.zeros(len(arrays), bool)


def cost(config: FitConfig) -> tuple[int, ...]:
    """What a config takes, for choosing the cheapest: smaller batch, fewer workers, threads before
    processes, smaller queue, in this order.
    """
    return (config.batch_size or 0, *_host_cost(config))


def _host_cost(config: FitConfig) -> tuple[int, int, int]:
    """What host memory grows with, beside the batch: workers, whether they are processes, queue; zeros without a queue."""
    if not config.has_queue:
        return 0, 0, 0
    return config.workers or 0, int(config.use_multiprocessing or 0), config.max_queue_size or 0


def build_space(
    asked: Mapping[str, Any] | None,
    knobs: Iterable[str],
    *,
    cores: int,
    sample_count: int | None,
    baseline: Mapping[str, Any] | None = None,
    effective_batch_size: int | None = None,
    max_batch_size: int | None = None,
) -> SearchSpace:
    """The search space for a workload whose input takes `knobs`.

    Args:
        asked: per knob a tuple (lowest, highest) for a range, or a list of values; knobs left out get defaults.
        knobs: names of the knobs that the input takes.
        cores: CPU cores that may be used; default workers go up to twice as many.
        sample_count: samples in the training data; default batch sizes stay at or below it. None if unknown.
        baseline: the user's present values; they are added to the defaults.
        effective_batch_size: only batch sizes that divide it, so that accumulated gradients add up to it.
        max_batch_size: only batch sizes up to it.

    Raises:
        UsageError: a knob that does not exist or that the data does not take, an empty or illegal set of values.
    """
    asked, taken = dict(asked or {}), tuple(knobs)
    for knob in asked:
        if knob not in KNOBS:
            raise UsageError(f"{knob!r} is not a knob; the knobs are {', '.join(KNOBS)}", key="space")
        if knob not in taken:
            raise UsageError(
                f"{knob} is given, but the data does not take it (it takes {', '.join(taken) or 'no knob'}); "
                f"add {knob} to the parameters of the data factory, or leave it out of the space",
                key="space",
            )
    if not taken:
        raise UsageError(
            "nothing to tune: the data factory takes none of the knobs; "
            "give it a parameter batch_size (and workers, max_queue_size, use_multiprocessing)"
        )
    largest = min(_LARGEST_BATCH, sample_count or _LARGEST_BATCH)
    workers = {1, *(2**k for k in range(1, 5)), cores}
    defaults: dict[str, Sequence[int]] = {
        "batch_size": batch_grid(1, largest),
        "workers": sorted(w for w in workers if w <= max(2, min(_MOST_WORKERS, 2 * cores))),
        "max_queue_size": _QUEUES,
        "use_multiprocessing": (False, True),
    }
    present = {knob: [baseline[knob]] if baseline and knob in baseline else [] for knob in taken}
    values: dict[str, Any] = {knob: tuple(sorted({*defaults[knob], *present[knob]})) for knob in taken}
    values |= {knob: _values(knob, asked[knob]) for knob in asked}
    if "batch_size" not in values:
        told = {"effective_batch_size": effective_batch_size, "max_batch_size": max_batch_size}
        for name, given in told.items():
            if given is not None:
                raise UsageError(f"{given} is given, but the data does not take batch_size", key=name)
        return SearchSpace(**values)
    if max_batch_size is not None:
        values["batch_size"] = _capped(values["batch_size"], max_batch_size, asked.get("batch_size"))
    if effective_batch_size is not None:
        values["batch_size"] = _divisors(effective_batch_size, values["batch_size"])
    return SearchSpace(**values)


def _capped(values: Sequence[int], most: int, asked: Any) -> tuple[int, ...]:
    """Batch sizes up to the most; it is one of them, unless the values were listed one by one."""
    within = {b for b in values if b <= most}
    if not isinstance(asked, list) and most <= values[-1]:
        within.add(most)
    if not within:
        raise UsageError(f"no batch size is left: the smallest is {values[0]}, and max_batch_size {most}", key="space")
    return tuple(sorted(within))


def _divisors(whole: int, within: Sequence[int]) -> tuple[int, ...]:
    """The divisors of an effective batch size from the smallest to the largest of some batch sizes."""
    found = tuple(b for b in range(max(1, within[0]), min(whole, within[-1]) + 1) if whole % b == 0)
    if not found:
        raise UsageError(
            f"no batch size from {within[0]} to {within[-1]} divides the effective batch size {whole}", key="space"
        )
    return found


def _values(knob: str, asked: Any) -> tuple[int, ...]:
    lowest = 0 if knob == "workers" else 1  # a max_queue_size of 0 is an unbounded queue: the whole epoch in memory
    is_range = isinstance(asked, tuple)
    values = list(asked) if isinstance(asked, tuple | list) else [asked]
    key = f"space.{knob}"
    if knob == "use_multiprocessing":
        if not values or not all(isinstance(v, bool) for v in values):
            raise UsageError(f"{asked!r} is not a list of true and false", key=key)
        return tuple(sorted(set(values)))
    if not values or not all(isinstance(v, int) and not isinstance(v, bool) and v >= lowest for v in values):
        raise UsageError(f"{asked!r} is not made of whole numbers from {lowest} on", key=key)
    if not is_range:
        return tuple(sorted(set(values)))
    if len(values) != 2 or values[0] > values[1]:
        raise UsageError(f"the range {asked!r} is not (lowest, highest)", key=key)
    if knob == "batch_size":
        return tuple(batch_grid(*values))
    return tuple(sorted({values[0], values[1], *(2**k for k in range(12) if values[0] <= 2**k <= values[1])}))


def batch_grid(lowest: int, highest: int) -> list[int]:
    """Powers of two; 3, 6 and 12; the multiples of 8 up to 128, from there on eight to the doubling; both ends.

    The multiples (of 16, 32, 64 and so on) are what hardware tiles by, and steps of an eighth waste little of a limit.
    """
    grid = {2**k for k in range(32)} | {3, 6, 12} | set(range(8, 129, 8))
    for power in range(7, 31):
        grid |= set(range(2**power, 2 ** (power + 1), 2 ** (power - 3)))
    return sorted({lowest, highest, *(b for b in grid if lowest <= b <= highest)})
