"""Predictions of the surrogates: rate and memory over a grid of batch sizes, the other knobs fixed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import numpy as np

from autofit.records.description import Description
from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.search.config_arrays import ConfigArrays, Vector
from autofit.search.context import SearchContext
from autofit.search.surrogate.memory import MemorySurrogate
from autofit.search.surrogate.throughput import ThroughputSurrogate

_STEPS_PER_OCTAVE = 4  # dense enough for a smooth line; sizes between these round ones may run slower
_EXTENSION = 2.0  # how far a curve extends beyond the tried batch sizes, as a factor
_INTERVAL = 1.96  # standard deviations of a 95 % interval

Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class RateCurve:
    """Samples per second over batch sizes: of `fit` with its 95 % interval, of the step alone, of the input alone."""

    batches: tuple[int, ...]
    expected: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    compute: tuple[float, ...]
    inputs: tuple[float, ...]


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes over batch sizes: the expected memory, and a bound with 99 % probability."""

    batches: tuple[int, ...]
    expected: tuple[float, ...]
    upper: tuple[float, ...]


def is_on_cpu(log: TuneLog) -> bool:
    """Whether the train step uses host memory and cores."""
    return log.device.startswith("CPU")


def best_known(log: TuneLog) -> FitConfig | None:
    """The config that the plots show: the chosen one, else the fastest that fits, else the first tried."""
    if isinstance(log, TuneRecord):
        return log.config
    fitting = [t for t in log.trials if t.fits(log.limits) and t.measurement.samples_per_second]
    if fitting:
        return max(fitting, key=lambda t: t.measurement.samples_per_second or 0.0).config
    return log.trials[0].config if log.trials else None


def same_setting(a: FitConfig, b: FitConfig) -> bool:
    """Whether two configs differ in the batch size at most."""
    if not a.has_queue and not b.has_queue:
        return True
    return replace(a, batch_size=None) == replace(b, batch_size=None)


def batch_range(trials: Sequence[Trial]) -> tuple[int, int] | None:
    """The smallest and the largest batch size tried; None if none was."""
    sizes = [t.config.batch_size for t in trials if t.config.batch_size]
    return (min(sizes), max(sizes)) if sizes else None


def grid(smallest: int, largest: int) -> tuple[int, ...]:
    """Round batch sizes from below the smallest tried to beyond the largest."""
    start, end = math.floor(math.log2(max(1.0, smallest / _EXTENSION))), math.ceil(math.log2(largest * _EXTENSION))
    steps = (
        2**octave * (1 + part / _STEPS_PER_OCTAVE) for octave in range(start, end) for part in range(_STEPS_PER_OCTAVE)
    )
    return tuple(sorted({round(size) for size in steps} | {2**end}))


def _if_it_can_be_fitted(predict: Callable[Arguments, Returned | None]) -> Callable[Arguments, Returned | None]:
    """Predict nothing where no model can be fitted, as to the readings of a damaged file: each is allowed by itself."""

    @functools.wraps(predict)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned | None:
        try:
            with np.errstate(all="ignore"):
                return predict(*args, **kwargs)
        except (ValueError, ArithmeticError):  # NumPy's LinAlgError is a ValueError
            return None

    return wrapper


@_if_it_can_be_fitted
def rate_curve(log: TuneLog) -> RateCurve | None:
    """The rates at the best known setting; None if fewer than two batch sizes ran."""
    best, sizes = best_known(log), batch_range(log.trials)
    ran = [t for t in log.trials if t.measurement.outcome is Outcome.OK and t.measurement.samples_per_second]
    if log.description is None or best is None or sizes is None or len({t.config.batch_size for t in ran}) < 2:
        return None
    context = SearchContext(log.description, log.limits, log.machine.cores, is_on_cpu(log))
    surrogate = ThroughputSurrogate(ran, context)
    batches = grid(*sizes)
    configs = ConfigArrays.of([replace(best, batch_size=size) for size in batches], log.machine.cores)
    fit, ceilings = surrogate.predict(configs), surrogate.ceilings(configs)
    margin = _INTERVAL * fit.deviation
    bands = (fit.mean, fit.mean - margin, fit.mean + margin, *ceilings)
    return RateCurve(batches, *(_exponentials(band) for band in bands))


def _memory_surrogate(log: TuneLog, description: Description) -> MemorySurrogate:
    """The memory surrogate fitted to all trials of a tune."""
    return MemorySurrogate(SearchContext(description, log.limits, log.machine.cores, is_on_cpu(log)), log.trials)


@_if_it_can_be_fitted
def memory_curve(log: TuneLog, memory: str) -> MemoryCurve | None:
    """The "device" or "host" memory at the best known setting; None if it cannot be predicted."""
    best, sizes = best_known(log), batch_range(log.trials)
    if log.description is None or best is None or sizes is None:
        return None
    surrogate = _memory_surrogate(log, log.description)
    batches = grid(*sizes)
    configs = [replace(best, batch_size=size) for size in batches]
    predictions = [surrogate.device(c) if memory == "device" else surrogate.host(c) for c in configs]
    known = [prediction for prediction in predictions if prediction is not None]
    if len(known) < len(batches):
        return None
    return MemoryCurve(batches, tuple(p.expected_bytes for p in known), tuple(p.upper_bytes for p in known))


@_if_it_can_be_fitted
def largest_predicted(log: TuneLog, setting: FitConfig) -> int | None:
    """The largest batch size of the grid predicted to fit, bounds included; 0 for none, None if unpredictable."""
    sizes = batch_range(log.trials)
    if log.description is None or sizes is None:
        return None
    surrogate = _memory_surrogate(log, log.description)
    return max((size for size in grid(*sizes) if surrogate.fits(replace(setting, batch_size=size))), default=0)


def _exponentials(logs: Vector) -> tuple[float, ...]:
    return tuple(float(value) for value in np.exp(logs))
