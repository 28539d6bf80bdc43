"""What the surrogates say between the trials: rate and memory over a dense grid of batch sizes, other knobs held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.records.result import TuneLog, TuneRecord
from autofit.records.trial import FitConfig, Outcome, Trial
from autofit.search.config_arrays import ConfigArrays, Vector
from autofit.search.surrogate.memory import MemorySurrogate
from autofit.search.surrogate.throughput import ThroughputSurrogate

_STEPS_AN_OCTAVE = 4  # dense enough for a smooth line, and all sizes round: hardware likes them alike
_BEYOND = 2.0  # times what was tried: how far a curve goes on
_INTERVAL = 1.96  # standard deviations: 95 % of a normal distribution lie within


@dataclass(frozen=True)
class RateCurve:
    """Rates over batch sizes, samples per second: of `fit` with its 95 % band, of the step alone, of the input alone."""

    batches: tuple[int, ...]
    expected: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    compute: tuple[float, ...]
    inputs: tuple[float, ...]


@dataclass(frozen=True)
class MemoryCurve:
    """Memory over batch sizes, bytes: what is expected, and the bound that it stays below with 99 % probability."""

    batches: tuple[int, ...]
    expected: tuple[float, ...]
    upper: tuple[float, ...]


def is_on_cpu(seen: TuneLog) -> bool:
    """Whether the train step itself takes host memory and cores."""
    return seen.device == "CPU"


def best_known(seen: TuneLog) -> FitConfig | None:
    """The config that the plots are drawn for: the chosen one, else the fastest that fits, else the first tried."""
    if isinstance(seen, TuneRecord):
        return seen.config
    fitting = [t for t in seen.trials if t.fits(seen.limits) and t.measurement.samples_per_second]
    if fitting:
        return max(fitting, key=lambda t: t.measurement.samples_per_second or 0.0).config
    return seen.trials[0].config if seen.trials else None


def same_setting(a: FitConfig, b: FitConfig) -> bool:
    """Whether two configs differ in the batch at most."""
    if not a.has_queue and not b.has_queue:
        return True
    return replace(a, batch_size=None) == replace(b, batch_size=None)


def batch_range(trials: Sequence[Trial]) -> tuple[int, int] | None:
    """The smallest and the largest batch that was tried; None where the batch is no knob, or nothing was tried."""
    sizes = [t.config.batch_size for t in trials if t.config.batch_size]
    return (min(sizes), max(sizes)) if sizes else None


def grid(smallest: int, largest: int) -> tuple[int, ...]:
    """Round batch sizes from a little below the smallest that was tried to a little beyond the largest."""
    start, end = math.floor(math.log2(max(1.0, smallest / _BEYOND))), math.ceil(math.log2(largest * _BEYOND))
    steps = (2**octave * (1 + part / _STEPS_AN_OCTAVE) for octave in range(start, end) for part in range(_STEPS_AN_OCTAVE))
    return tuple(sorted({round(size) for size in steps} | {2**end}))


def rate_curve(seen: TuneLog) -> RateCurve | None:
    """The throughput surrogate at the best known setting; None where fewer than two batch sizes ran."""
    at, there = best_known(seen), batch_range(seen.trials)
    ran = [t for t in seen.trials if t.measurement.outcome is Outcome.OK and t.measurement.samples_per_second]
    if seen.description is None or at is None or there is None or len({t.config.batch_size for t in ran}) < 2:
        return None
    surrogate = ThroughputSurrogate(
        ran, cores=seen.machine.cores, sample_bytes=seen.description.sample_bytes, on_cpu=is_on_cpu(seen)
    )
    batches = grid(*there)
    columns = ConfigArrays.of([replace(at, batch_size=size) for size in batches])
    fit, ceilings = surrogate.predict(columns), surrogate.ceilings(columns)
    margin = _INTERVAL * fit.deviation
    bands = (fit.mean, fit.mean - margin, fit.mean + margin, *ceilings)
    return RateCurve(batches, *(_exponentials(band) for band in bands))


def memory_curve(seen: TuneLog, memory: str) -> MemoryCurve | None:
    """The memory surrogate of "device" or "host" at the best known setting; None where it knows nothing."""
    at, there = best_known(seen), batch_range(seen.trials)
    if seen.description is None or at is None or there is None:
        return None
    surrogate = MemorySurrogate(seen.description, seen.limits, on_cpu=is_on_cpu(seen), trials=seen.trials)
    batches = grid(*there)
    configs = [replace(at, batch_size=size) for size in batches]
    found = [surrogate.device(c) if memory == "device" else surrogate.host(c) for c in configs]
    known = [prediction for prediction in found if prediction is not None]
    if len(known) < len(batches):
        return None
    return MemoryCurve(batches, tuple(p.expected_bytes for p in known), tuple(p.upper_bytes for p in known))


def largest_predicted(seen: TuneLog, setting: FitConfig) -> int | None:
    """The largest batch of the grid whose predicted bounds are within the limits; 0 for none, None where none is known."""
    there = batch_range(seen.trials)
    if seen.description is None or there is None:
        return None
    surrogate = MemorySurrogate(seen.description, seen.limits, on_cpu=is_on_cpu(seen), trials=seen.trials)
    return max((size for size in grid(*there) if surrogate.fits(replace(setting, batch_size=size))), default=0)


def _exponentials(logs: Vector) -> tuple[float, ...]:
    return tuple(float(value) for value in np.exp(logs))
