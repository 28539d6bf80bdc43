"""Which configs may be tried: untried, not ruled out by an OOM, predicted to fit, near the finished trials. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.records.description import Description
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Limits, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.space import SearchSpace, cost, dominated_by, hardly_faster, like_a_hang
from autofit.search.surrogate.memory import MemorySurrogate

_BOUND_DEVIATIONS = 2.0  # standard deviations of an upper bound: an OOM trial costs half a minute, so 2 suffice
_BATCH_LEAP_FACTOR = 8  # beyond this multiple of the largest batch that ran, the memory model is not trusted
_PROCESSES_LEAP_FACTOR = 4  # the same for worker processes


@dataclass(frozen=True)
class Feasibility:
    """Masks and memory predictions, an entry for each config of the space.

    `untried` configs have not run, and no OOM or hang rules them out; those `expected` to fit have expected memory within
    the limits; `candidates` may be tried now: their upper bounds are within the limits, too, and they are not too far
    beyond the finished trials. `device` and `host` are upper bounds in units of the limits; `likely` is the expected value
    of the memory with the higher bound.
    """

    untried: Mask
    expected: Mask
    candidates: Mask
    device: Vector
    host: Vector
    likely: Vector

    @property
    def share(self) -> Vector:
        """The larger of both memories' upper bounds over the limits."""
        return np.maximum(self.device, self.host)


class FeasibleSet:
    """The configs of a space, cheapest first, and which of them may be tried.

    Args:
        space: the legal configs.
        description: of the workload.
        limits: under which trials run.
        on_cpu: whether the train step itself takes host memory.
        headroom: share of each limit that the upper bound of a predicted memory must leave free.
        max_oom: number of OOMs after which nothing larger than the finished trials may be tried.
        warm_start: finished trials of an earlier tune of the same workload.
        cores: CPU cores, for AUTOTUNE.
    """

    def __init__(
        self,
        space: SearchSpace,
        description: Description,
        limits: Limits,
        *,
        on_cpu: bool,
        headroom: float,
        max_oom: int,
        warm_start: Sequence[Trial] = (),
        cores: int = 1,
    ) -> None:
        self.configs = tuple(sorted(space.configs(), key=cost))
        self.arrays = ConfigArrays.of(self.configs, cores)
        self.index = {config: index for index, config in enumerate(self.configs)}
        self._description, self._limits, self._on_cpu = description, limits, on_cpu
        self._usable, self._max_oom, self._warm_start, self._cores = 1 - headroom, max_oom, tuple(warm_start), cores

    def feasibility(self, trials: Sequence[Trial]) -> Feasibility:
        """Which configs may be tried after these trials."""
        expected, upper = self.memory(trials).shares(self.arrays, _BOUND_DEVIATIONS)
        untried = np.ones(len(self.configs), bool)
        for trial in trials:
            if trial.config in self.index:
                untried[self.index[trial.config]] = False
            untried &= ~dominated_by(self.arrays, trial.config, trial.measurement.outcome)
            if trial.measurement.evidence.hung:
                untried &= ~like_a_hang(self.arrays, trial.config)
            elif trial.measurement.outcome is Outcome.TIMEOUT:
                untried &= ~hardly_faster(self.arrays, trial.config)
        candidates = untried & (np.maximum(*upper) <= self._usable) & self._near(trials)
        likely = np.where(upper[0] >= upper[1], expected[0], expected[1])
        return Feasibility(untried, untried & (np.maximum(*expected) <= self._usable), candidates, *upper, likely)

    def configs_at(self, mask: Mask) -> tuple[FitConfig, ...]:
        """The configs that a mask selects."""
        return tuple(self.configs[index] for index in np.flatnonzero(mask))

    def memory(self, trials: Sequence[Trial]) -> MemorySurrogate:
        """The memory surrogate, fitted to these trials."""
        return MemorySurrogate(
            self._description,
            self._limits,
            on_cpu=self._on_cpu,
            trials=trials,
            warm_start=self._warm_start,
            cores=self._cores,
        )

    def _near(self, trials: Sequence[Trial]) -> Mask:
        """Which configs are not too far beyond the finished trials; after too many OOMs, not beyond them at all."""
        finished = [t.config for t in (*trials, *self._warm_start) if t.measurement.outcome is Outcome.OK]
        if not finished:
            return np.ones(len(self.configs), bool)
        ran = ConfigArrays.of(finished)
        batch, processes = float(ran.batch.max()), float((ran.workers * ran.processes).max())
        if sum(t.measurement.outcome.is_oom for t in trials) < self._max_oom:
            batch, processes = _BATCH_LEAP_FACTOR * batch, _PROCESSES_LEAP_FACTOR * max(1.0, processes)
        return np.asarray((self.arrays.batch <= batch) & (self.arrays.workers * self.arrays.processes <= processes))
