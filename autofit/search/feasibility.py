"""Find the configs that may be tried. This module has no side effects.

They have not run, no failure rules them out, they are predicted to fit, and they are near the finished trials.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.context import SearchContext
from autofit.search.space import SearchSpace, cost
from autofit.search.surrogate.memory import MemorySurrogate

_BOUND_DEVIATIONS = 2.0  # standard deviations up to an upper bound: an OOM trial costs only half a minute, so 2 suffice
_BATCH_LEAP_FACTOR = 8  # the memory model is not trusted beyond this multiple of the largest batch size that ran
_PROCESSES_LEAP_FACTOR = 4  # the memory model is not trusted beyond this multiple of the most worker processes that ran
_SLOW_SHARE = 0.5  # batch sizes above this share of one that timed out are not tried


@dataclass(frozen=True)
class Feasibility:
    """Masks and memory predictions with one entry for each config of the space.

    `untried` configs have not run, and no OOM, hang or timeout rules them out. `expected` marks the untried configs whose
    expected memory is within the limits. `candidates` may be tried now: the upper bounds of their memory are within the
    limits, and they are not too far beyond the finished trials. `risky` configs would be candidates but for the upper bound
    of their device memory; `chance` is the probability that a config's device memory is within its limit. `device` and
    `host` are the upper bounds of both memories, as shares of their limits; `likely` is the expected share of the memory
    that has the higher bound.
    """

    untried: Mask
    expected: Mask
    candidates: Mask
    risky: Mask
    chance: Vector
    device: Vector
    host: Vector
    likely: Vector

    def without(self, configs: Mask) -> Feasibility:
        """Return the same with some configs neither expected to fit nor to be tried."""
        masks = {name: getattr(self, name) & ~configs for name in ("expected", "candidates", "risky")}
        return replace(self, **masks)


class FeasibleSet:
    """Holds the configs of a space, cheapest first, and finds those that may be tried."""

    def __init__(self, space: SearchSpace, context: SearchContext) -> None:
        self.configs = _configs(space)
        self.arrays = ConfigArrays.of(self.configs, context.cores)
        self.index = {config: index for index, config in enumerate(self.configs)}
        self._context = context

    def feasibility(self, trials: Sequence[Trial]) -> Feasibility:
        """Return which configs may be tried after these trials, and the predicted memory of each."""
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
                untried &= ~slow_to_start(self.arrays, trial.config, trials)
        (device, host), usable = upper, 1 - self._context.headroom
        possible = untried & (host <= usable) & self._near(trials)
        candidates = possible & (device <= usable)
        chance = _probability_below(1.0, expected[0], (device - expected[0]) / _BOUND_DEVIATIONS)
        likely = np.where(device >= host, expected[0], expected[1])
        expected_to_fit = untried & (np.maximum(*expected) <= usable)
        return Feasibility(untried, expected_to_fit, candidates, possible & ~candidates, chance, device, host, likely)

    def _near(self, trials: Sequence[Trial]) -> Mask:
        """Return a mask of the configs near the finished trials; after `max_oom` OOMs, larger ones do not count as near."""
        finished = [t.config for t in (*trials, *self._context.warm_start) if t.measurement.outcome is Outcome.OK]
        if not finished:
            return np.ones(len(self.configs), bool)
        ran = ConfigArrays.of(finished)
        batch, processes = float(ran.batch.max()), float(ran.worker_processes.max())
        if sum(t.measurement.outcome.is_oom for t in trials) < self._context.max_oom:
            batch, processes = _BATCH_LEAP_FACTOR * batch, _PROCESSES_LEAP_FACTOR * max(1.0, processes)
        return np.asarray((self.arrays.batch <= batch) & (self.arrays.worker_processes <= processes))


def _probability_below(limit: float, mean: Vector, deviation: Vector) -> Vector:
    """Return the probability that normally distributed values lie below a limit."""
    from scipy.special import ndtr  # loading takes a quarter of a second, which a stored result does not need

    return np.asarray(ndtr((limit - mean) / np.maximum(deviation, 1e-9)))


@functools.lru_cache
def _configs(space: SearchSpace) -> tuple[FitConfig, ...]:
    """Return the configs of a space, cheapest first; many tunes of a sweep have the same space."""
    return tuple(sorted(space.configs(), key=cost))


def dominated_by(arrays: ConfigArrays, oom_config: FitConfig, outcome: Outcome) -> Mask:
    """Return a mask of the configs that cannot fit if one config ran out of memory; all False for any other outcome.

    Device memory grows only with the batch size. Host memory also grows with workers, processes and queue, so a host OOM
    rules out the configs that are at least as large in every knob. AUTOTUNE is neither larger nor smaller than a number:
    it is compared only with AUTOTUNE.
    """
    failed = ConfigArrays.of([oom_config])
    larger = arrays.batch >= failed.batch
    if outcome is Outcome.HOST_OOM:
        same_kind = (arrays.auto_workers == failed.auto_workers) & (arrays.auto_queue == failed.auto_queue)
        larger &= same_kind & (arrays.workers >= failed.workers)
        larger &= (arrays.processes >= failed.processes) & (arrays.queue >= failed.queue)
    return larger if outcome.is_oom else np.zeros(len(arrays), bool)


def like_a_hang(arrays: ConfigArrays, hung: FitConfig) -> Mask:
    """Return a mask of the configs that may hang, given one that did.

    If the config that hung has a queue, these have a queue and at least as many workers of the same kind. If it has none,
    these have none, and at least the same batch size.
    """
    failed = ConfigArrays.of([hung])
    same_kind = (arrays.processes == failed.processes) & (arrays.queued == failed.queued)
    return np.asarray(same_kind & np.where(failed.queued, arrays.workers >= failed.workers, arrays.batch >= failed.batch))


def hardly_faster(arrays: ConfigArrays, slow: FitConfig) -> Mask:
    """Return a mask of the configs with more than half the batch size of one that timed out, and at most its workers."""
    failed = ConfigArrays.of([slow])
    no_faster = (arrays.workers <= failed.workers) & (arrays.processes <= failed.processes)
    return np.asarray((arrays.batch > _SLOW_SHARE * failed.batch) & no_faster)


def slow_to_start(arrays: ConfigArrays, slow: FitConfig, trials: Sequence[Trial]) -> Mask:
    """Return a mask of the configs with worker processes if starting them is what took one that timed out so long.

    That is so if its batch size, or a larger one, has finished in the main process or with threads.
    """
    finished = ConfigArrays.of([t.config for t in trials if t.measurement.outcome is Outcome.OK])
    failed = ConfigArrays.of([slow])
    is_start = failed.processes[0] and np.any(~finished.processes & (finished.batch >= failed.batch[0]))
    return arrays.processes & bool(is_start)
