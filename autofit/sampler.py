"""What to try next: the baseline, a doubling ramp of the batch up to the frontier, then Optuna's TPE inside what fits.

`RampSampler` is an `optuna.samplers.BaseSampler`. All that it knows of earlier trials it reads from the Optuna study
(parameters, values, the two constraints, states), so that a resumed study goes on where it was. What takes its place
needs the same: to be a sampler, to name its parameters in `distributions`, and to say by `stop_reason` when to stop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autofit.records import DEVICE_MEMORY, HOST_MEMORY, FitConfig, Outcome
from autofit.space import SearchSpace, condemned, cost

_SPENT = (TrialState.COMPLETE, TrialState.PRUNED)
_EXHAUSTED = "every configuration has been tried, or is known or predicted not to fit"
_LEAP = 8  # a batch larger by more than this than any that ran is beyond what the memory's fit is good for
_RETREAT = 4  # a first batch that does not fit is divided by this: an OOM costs as much as ten good trials
_RAMP_GAIN = 0.05  # a doubling that gains less has reached the flat part
_TPE_STARTUP_TRIALS = 4


class RampSampler(optuna.samplers.BaseSampler):
    """Baseline, doubling ramp, then TPE with constraints; never what is known or predicted not to fit, nothing twice.

    Args:
        space: the legal configs.
        baseline: tried first when it is in the space.
        cores: CPU cores; the ramp runs with so many worker threads.
        fitting: called before each proposal; what it gives says of a config whether it is predicted to fit.
        ramp_trials: longest ramp.
        seed: makes the proposals repeatable.
    """

    def __init__(
        self,
        space: SearchSpace,
        baseline: FitConfig,
        *,
        cores: int,
        fitting: Callable[[], Callable[[FitConfig], bool]],
        ramp_trials: int = 6,
        seed: int = 0,
    ) -> None:
        self._space = space
        self._configs = tuple(space.configs())
        self._baseline = space.canonical(baseline)
        self._lane = space.nearest(replace(baseline, workers=cores, use_multiprocessing=False))
        self._ramp_trials, self._fitting = ramp_trials, fitting
        self.distributions = {knob: _distribution(values) for knob, values in space.knobs().items()}
        self._tpe = optuna.samplers.TPESampler(multivariate=True, n_startup_trials=_TPE_STARTUP_TRIALS, seed=seed)
        self._random = random.Random(seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All knobs of the space, from the first trial on."""
        return dict(self.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next config, as parameters.

        Raises:
            RuntimeError: nothing is left (`stop_reason` says so before).
        """
        past = study.get_trials(deepcopy=False, states=_SPENT)
        left = self._left(past)
        if not left:
            raise RuntimeError(_EXHAUSTED)
        config = self._ramp(past, left)
        if config is None:
            drawn = self._tpe.sample_relative(study, trial, search_space)
            config = min(left, key=lambda c: _distance(c, drawn)) if drawn else self._random.choice(left)
        return {knob: getattr(config, knob) for knob in search_space}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Parameters that are not knobs are left to TPE."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    def stop_reason(self, study: optuna.Study) -> str | None:
        """The space is exhausted, or None."""
        left = self._left(study.get_trials(deepcopy=False, states=_SPENT))
        return None if left else _EXHAUSTED

    def _left(self, past: list[FrozenTrial]) -> list[FitConfig]:
        """The configs that are neither tried, nor condemned by a known OOM, nor predicted not to fit, nor a leap.

        While nothing has fitted, the cheapest of those that are predicted not to is left, too: the prediction may be wrong.
        """
        tried = {FitConfig.of(trial.params) for trial in past}
        ooms = [(FitConfig.of(t.params), outcome) for t in past for outcome in _violations(t)]
        open_ = [c for c in self._configs if c not in tried and not any(condemned(c, at, outcome) for at, outcome in ooms)]
        ran = [c.batch_size or 1 for c in _rates(past)]
        fits = self._fitting()
        left = [c for c in open_ if fits(c) and (not ran or (c.batch_size or 1) <= _LEAP * max(ran))]
        return left if left or ran or not open_ else [min(open_, key=cost)]

    def _ramp(self, past: list[FrozenTrial], left: list[FitConfig]) -> FitConfig | None:
        """The next config of the ramp, or None when it is over."""
        if not past:
            return (
                self._baseline if self._baseline in left else min(left, key=lambda c: _distance(c, self._baseline.values()))
            )
        rates = _rates(past)
        batches = self._space.batch_size
        if batches is None:
            return self._lane if self._lane in left else None
        if not rates:
            below = max(batches[0], min(FitConfig.of(t.params).batch_size or 0 for t in past) // _RETREAT)
            return min(left, key=lambda c: (abs(math.log2((c.batch_size or 1) / below)), _distance(c, self._lane.values())))
        if len(past) > self._ramp_trials:
            return None
        rungs = sorted(
            (c.batch_size or 0, rate)
            for c, rate in rates.items()
            if replace(c, batch_size=None) == replace(self._lane, batch_size=None)
        )
        if len(rungs) >= 2 and rungs[-1][1] < (1 + _RAMP_GAIN) * rungs[-2][1]:
            return None
        goal = 2 * rungs[-1][0] if rungs else max(c.batch_size or 0 for c in rates)
        above = [c for c in left if self._in_lane(c) and (c.batch_size or 0) > (rungs[-1][0] if rungs else 0)]
        return min(above, key=lambda c: abs(math.log2((c.batch_size or 1) / goal)), default=None)

    def _in_lane(self, config: FitConfig) -> bool:
        """Whether all knobs but the batch are those of the ramp."""
        return replace(config, batch_size=self._lane.batch_size) == self._lane


def _distribution(values: tuple[int, ...]) -> BaseDistribution:
    if all(isinstance(v, bool) for v in values):
        return CategoricalDistribution(values)
    return IntDistribution(values[0], values[-1], log=values[0] > 0)


def _rates(past: list[FrozenTrial]) -> dict[FitConfig, float]:
    """Samples per second of what fitted."""
    return {FitConfig.of(t.params): t.value for t in past if t.value is not None and not _violations(t)}


def _violations(trial: FrozenTrial) -> list[Outcome]:
    """The limits that a trial is known to break."""
    names = {DEVICE_MEMORY: Outcome.DEVICE_OOM, HOST_MEMORY: Outcome.HOST_OOM}
    return [outcome for name, outcome in names.items() if trial.constraints.get(name, 0) > 0]


def _distance(config: FitConfig, params: Mapping[str, Any]) -> float:
    """How far apart two settings are: squared octaves, four for threads against processes."""
    total = 0.0
    for knob, value in params.items():
        own = getattr(config, knob)
        if isinstance(value, bool):
            total += 4.0 * (own != value)
        elif own is not None:
            total += math.log2((own + 1) / (value + 1)) ** 2
    return total
