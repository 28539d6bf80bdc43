"""Which configs may be tried: untried, condemned by no OOM, predicted to fit, and not too far beyond what has run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.records.trial import Description, FitConfig, Limits, Outcome, Trial
from autofit.search.config_arrays import ConfigArrays, Mask, Vector
from autofit.search.space import SearchSpace, cost, dominated_by
from autofit.search.surrogate.memory import MemorySurrogate

_DEVIATIONS = 2.0  # of a prediction's upper bound: a trial that runs out of memory costs half a minute, not a week
_LEAP = 8  # a batch larger by more than this than any that ran is beyond what the memory's fit is good for
_PROCESSES_LEAP = 4  # likewise for worker processes


@dataclass(frozen=True)
class Feasibility:
    """What may be tried of all configs, in their order.

    `untried` configs have not run and are not larger than one that ran out of memory; those of them that are `expected` to
    fit have a predicted memory within the limits; `candidates` may be tried now: their upper bounds are within the limits,
    too, and they are not far beyond what has run. `device` and `host` are upper bounds in units of the limits; `likely` is
    the prediction for the memory with the higher bound.
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
    """Knows the configs of a space, cheapest first, and which of them may be tried.

    Args:
        space: the legal configs.
        description: of the workload.
        limits: under which trials run.
        on_cpu: whether the train step itself takes host memory.
        risk: the share of each limit that the upper bound of a prediction may reach.
        max_oom: after so many OOMs nothing larger than what has run may be tried.
        warm_start: trials of an earlier tune of the same workload, that ran to their end.
    """

    def __init__(
        self,
        space: SearchSpace,
        description: Description,
        limits: Limits,
        *,
        on_cpu: bool,
        risk: float,
        max_oom: int,
        warm_start: Sequence[Trial] = (),
    ) -> None:
        self.configs = tuple(sorted(space.configs(), key=cost))
        self.arrays = ConfigArrays.of(self.configs)
        self.index = {config: index for index, config in enumerate(self.configs)}
        self._description, self._limits, self._on_cpu = description, limits, on_cpu
        self._risk, self._max_oom, self._warm_start = risk, max_oom, tuple(warm_start)

    def feasibility(self, trials: Sequence[Trial]) -> Feasibility:
        """What may be tried after these trials."""
        expected, upper = self.memory(trials).shares(self.arrays, _DEVIATIONS)
        untried = np.ones(len(self.configs), bool)
        for trial in trials:
            if trial.config in self.index:
                untried[self.index[trial.config]] = False
            untried &= ~dominated_by(self.arrays, trial.config, trial.measurement.outcome)
        candidates = untried & (np.maximum(*upper) <= self._risk) & self._near(trials)
        likely = np.where(upper[0] >= upper[1], expected[0], expected[1])
        return Feasibility(untried, untried & (np.maximum(*expected) <= self._risk), candidates, *upper, likely)

    def configs_at(self, mask: Mask) -> tuple[FitConfig, ...]:
        """The configs that a mask names."""
        return tuple(self.configs[index] for index in np.flatnonzero(mask))

    def memory(self, trials: Sequence[Trial]) -> MemorySurrogate:
        """What is known of memory after these trials."""
        return MemorySurrogate(
            self._description, self._limits, on_cpu=self._on_cpu, trials=trials, warm_start=self._warm_start
        )

    def _near(self, trials: Sequence[Trial]) -> Mask:
        """Which configs are not too far beyond what has run; after too many OOMs, not beyond it at all."""
        ran = [t.config for t in (*trials, *self._warm_start) if t.measurement.outcome is Outcome.OK]
        if not ran:
            return np.ones(len(self.configs), bool)
        arrays = ConfigArrays.of(ran)
        careful = sum(t.measurement.outcome.is_oom for t in trials) >= self._max_oom
        processes = float((arrays.workers * arrays.processes).max())
        most = processes if careful else _PROCESSES_LEAP * max(1.0, processes)
        batch = (1 if careful else _LEAP) * arrays.batch.max()
        return np.asarray((self.arrays.batch <= batch) & (self.arrays.workers * self.arrays.processes <= most))
