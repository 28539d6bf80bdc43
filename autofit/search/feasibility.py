"""Which configs may be tried: untried, not ruled out by an OOM, predicted to fit, near the finished trials. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.records.result import FrontierPoint
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Limits, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.context import SearchContext
from autofit.search.space import SearchSpace, cost
from autofit.search.surrogate.memory import MemorySurrogate

_BOUND_DEVIATIONS = 2.0  # standard deviations of an upper bound: an OOM trial costs half a minute, so 2 suffice
_BATCH_LEAP_FACTOR = 8  # the memory model is not trusted beyond this multiple of the largest batch that ran
_PROCESSES_LEAP_FACTOR = 4  # the same for worker processes
_SLOW_SHARE = 0.5  # of a batch size that timed out: larger batches are not tried


@dataclass(frozen=True)
class Feasibility:
    """Masks and memory predictions with one entry per config of the space.

    `untried` configs have not run, and no OOM, hang or timeout rules them out. Those `expected` to fit have their expected
    memory within the limits. `candidates` may be tried now: their upper bounds are within the limits as well, and they are
    not too far beyond the finished trials. `device` and `host` are upper bounds in units of the limits; `likely` is the
    expected value of the memory with the higher bound.
    """

    untried: Mask
    expected: Mask
    candidates: Mask
    device: Vector
    host: Vector
    likely: Vector

    @property
    def share(self) -> Vector:
        """The higher of the two upper bounds, in units of its limit."""
        return np.maximum(self.device, self.host)


class FeasibleSet:
    """The configs of a space, cheapest first, and which of them may be tried."""

    def __init__(self, space: SearchSpace, context: SearchContext) -> None:
        self.configs = tuple(sorted(space.configs(), key=cost))
        self.arrays = ConfigArrays.of(self.configs, context.cores)
        self.index = {config: index for index, config in enumerate(self.configs)}
        self._context = context

    def feasibility(self, trials: Sequence[Trial]) -> Feasibility:
        """Work out which configs may be tried after these trials."""
        expected, upper = MemorySurrogate(self._context, trials).shares(self.arrays, _BOUND_DEVIATIONS)
        untried = np.ones(len(self.configs), bool)
        for trial in trials:
            if trial.config in self.index:
                untried[self.index[trial.config]] = False
            untried &= ~dominated_by(self.arrays, trial.config, trial.measurement.outcome)
            if trial.measurement.evidence.hung:
                untried &= ~like_a_hang(self.arrays, trial.config)
            elif trial.measurement.outcome is Outcome.TIMEOUT:
                untried &= ~hardly_faster(self.arrays, trial.config)
        usable = 1 - self._context.headroom
        candidates = untried & (np.maximum(*upper) <= usable) & self._near(trials)
        likely = np.where(upper[0] >= upper[1], expected[0], expected[1])
        return Feasibility(untried, untried & (np.maximum(*expected) <= usable), candidates, *upper, likely)

    def _near(self, trials: Sequence[Trial]) -> Mask:
        """Which configs are not too far beyond the finished trials; after too many OOMs, not beyond them at all."""
        finished = [t.config for t in (*trials, *self._context.warm_start) if t.measurement.outcome is Outcome.OK]
        if not finished:
            return np.ones(len(self.configs), bool)
        ran = ConfigArrays.of(finished)
        batch, processes = float(ran.batch.max()), float((ran.workers * ran.processes).max())
        if sum(t.measurement.outcome.is_oom for t in trials) < self._context.max_oom:
            batch, processes = _BATCH_LEAP_FACTOR * batch, _PROCESSES_LEAP_FACTOR * max(1.0, processes)
        return np.asarray((self.arrays.batch <= batch) & (self.arrays.workers * self.arrays.processes <= processes))


def dominated_by(arrays: ConfigArrays, oom_config: FitConfig, outcome: Outcome) -> Mask:
    """Which configs cannot fit, given the outcome of one config; none unless the outcome is an OOM.

    Device memory grows with the batch size alone. Host memory also grows with workers, processes and queue, so a host OOM
    rules out the configs that are at least as large in every knob. AUTOTUNE has no order relative to a number: it is
    compared with AUTOTUNE alone.
    """
    failed = ConfigArrays.of([oom_config])
    larger = arrays.batch >= failed.batch
    if outcome is Outcome.HOST_OOM:
        same_kind = (arrays.auto_workers == failed.auto_workers) & (arrays.auto_queue == failed.auto_queue)
        larger &= same_kind & (arrays.workers >= failed.workers)
        larger &= (arrays.processes >= failed.processes) & (arrays.queue >= failed.queue)
    return larger if outcome.is_oom else np.zeros(len(arrays), bool)


def like_a_hang(arrays: ConfigArrays, hung: FitConfig) -> Mask:
    """Configs that may hang as one did: as many workers of its kind or, without a queue, at least as large a batch."""
    failed = ConfigArrays.of([hung])
    same_kind = (arrays.processes == failed.processes) & (arrays.queued == failed.queued)
    return np.asarray(same_kind & np.where(failed.queued, arrays.workers >= failed.workers, arrays.batch >= failed.batch))


def hardly_faster(arrays: ConfigArrays, slow: FitConfig) -> Mask:
    """Configs unlikely to finish in time, given one that did not: more than half its batch size, no more workers."""
    failed = ConfigArrays.of([slow])
    no_faster = (arrays.workers <= failed.workers) & (arrays.processes <= failed.processes)
    return np.asarray((arrays.batch > _SLOW_SHARE * failed.batch) & no_faster)


def frontier(trials: Iterable[Trial], limits: Limits) -> tuple[FrontierPoint, ...]:
    """Find the largest batch that fits and the smallest that ran out of memory for each setting of the other knobs."""
    sizes: dict[FitConfig, tuple[list[int], list[int]]] = {}
    for trial in trials:
        fitted, failed = sizes.setdefault(replace(trial.config, batch_size=None), ([], []))
        if trial.config.batch_size is None:
            continue
        if trial.fits(limits):
            fitted.append(trial.config.batch_size)
        elif trial.measurement.outcome.is_oom:
            failed.append(trial.config.batch_size)
    return tuple(
        FrontierPoint(others, max(fitted, default=None), min(failed, default=None))
        for others, (fitted, failed) in sizes.items()
    )
