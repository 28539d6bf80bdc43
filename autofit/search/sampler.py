"""An Optuna sampler that uses autofit's search."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel

from autofit.errors import UsageError
from autofit.machine.host import usable_cores
from autofit.records.description import Description
from autofit.records.knobs import AUTOTUNE, KERAS_DEFAULTS, FitConfig
from autofit.records.trial import Limits, Trial
from autofit.search.context import SearchContext
from autofit.search.frontier import Decision, FrontierSearch, Proposal
from autofit.search.space import TOLERANCE, SearchSpace, Space, build_space
from autofit.storage import codec
from autofit.workload.arguments import EXPLAINED

# proposals in a row that are not new: a sampler that repeats itself has settled
_MOST_REPEATS = 5
# used as the limit if memory is known only as a share of it; the value does not matter
_UNIT_BYTES = 2**30
# a description without any sizes
_UNKNOWN_WORKLOAD = Description(
    "unknown", {}, None, 0, 0, 0, 0, jit_compile=False, fingerprint=""
)


class _Arguments(BaseModel):  # of `FrontierSampler`, to validate as those of `tune`
    space: Space
    _explained = EXPLAINED


class FrontierSampler(BaseSampler):
    """An Optuna sampler that proposes the most promising config among those predicted to fit in
    memory.

    It models throughput and memory, avoids configs that may run out of memory, and reports when no
    further trial is worthwhile. All its state is in the Optuna study, so a resumed study continues
    where it stopped.

    The search needs fewer trials if the objective sets two user attributes of its trial:
    `compute_samples_per_second`, the rate of the train step alone, and `input_samples_per_second`,
    the rate of the input pipeline alone.

    Args:
        space: a `SearchSpace`, or a dict that maps each knob to a range (`{"min": 8, "max": 64}`)
            or a list of choices.
        baseline: the present config.
        description: the workload; its memory estimates make the first proposals safer.
        limits: memory limits in bytes; None if the objective's constraints give memory only as
            shares of the limits.
        cores: number of CPU cores; None for all that this process may use.
        on_cpu: whether the model trains on the CPU, so that the step and the input pipeline share
            cores and memory.
        tolerance: relative gain below which configs count as equally fast (0.02 is 2%).
        effective_batch_size: number of samples in one weight update; only batch sizes that divide
            it are searched.
        warm_start: finished trials of an earlier tune of the same workload, under other limits or
            versions.
        seed: seed of Optuna's TPE sampler, which samples the parameters that are not knobs.

    Raises:
        UsageError: the space is empty or contains a value that is not allowed.

    Example:
        With plain Optuna; this objective is made up, yours trains for a short time:

        >>> sampler = autofit.FrontierSampler({"batch_size": {"min": 8, "max": 1024}})
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> def objective(trial):
        ...     batch = sampler.suggest(trial).batch_size
        ...     # peak bytes / limit - 1: above 0 it ran out
        ...     trial.set_constraint("device_memory", batch / 300 - 1)
        ...     trial.set_constraint("host_memory", -0.5)
        ...     return batch / (2 + 0.01 * batch) if batch <= 300 else 0.0  # samples/s
        >>> study.optimize(objective, n_trials=30, callbacks=[sampler.stop_when_settled])
        >>> study.best_params
        {'batch_size': 288}
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any],
        *,
        baseline: FitConfig = KERAS_DEFAULTS,
        description: Description = _UNKNOWN_WORKLOAD,
        limits: Limits | None = None,
        cores: int | None = None,
        on_cpu: bool = False,
        tolerance: float = TOLERANCE,
        effective_batch_size: int | None = None,
        warm_start: Sequence[Trial] = (),
        seed: int = 0,
    ) -> None:
        cores = cores or usable_cores()
        if not isinstance(space, SearchSpace):
            asked = _Arguments(space=space).space.values()
            autotunes = any(AUTOTUNE in values for values in asked.values())
            space = build_space(
                asked,
                asked,
                cores=cores,
                effective_batch_size=effective_batch_size,
                autotunes=autotunes,
            )
        limits = limits or Limits(_UNIT_BYTES, _UNIT_BYTES)
        self.context = SearchContext(
            description, limits, cores, on_cpu, tolerance, tuple(warm_start)
        )
        self.search = FrontierSearch(space, space.canonical(baseline), self.context)
        self.proposal: Proposal | None = None
        # to decide from, in place of those of the study
        self.trials: tuple[Trial, ...] | None = None
        self.distributions = codec.distributions(space.knobs())
        self._other: BaseSampler = optuna.samplers.TPESampler(seed=seed)

    def suggest(self, trial: optuna.Trial) -> FitConfig:
        """Suggest every knob of an Optuna trial, and return the config."""
        for name, distribution in self.distributions.items():
            if isinstance(distribution, IntDistribution):
                trial.suggest_int(
                    name, distribution.low, distribution.high, log=distribution.log
                )
            elif isinstance(distribution, CategoricalDistribution):
                trial.suggest_categorical(name, distribution.choices)
        return FitConfig.of(trial.params)

    def decide(self, trials: Sequence[Trial]) -> Decision:
        return self.search.propose(trials)

    def stop_reason(self, study: optuna.Study) -> str | None:
        """Return the reason why no further trial is worth its time; None if one is."""
        return self.decide(self._trials(study)).stop_reason

    def stop_when_settled(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Stop `study.optimize` when no further trial is worth its time; pass it as a callback."""
        if self.stop_reason(study) is not None:
            study.stop()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self.distributions)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        decision = self._choose(study, trial)
        if decision.proposal is None:
            raise RuntimeError(decision.stop_reason)
        # the best remaining config if there is a reason to stop
        self.proposal = decision.proposal
        return {knob: getattr(self.proposal.config, knob) for knob in search_space}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # a parameter that is not a knob
        return self._other.sample_independent(
            study, trial, param_name, param_distribution
        )

    def _choose(self, study: optuna.Study, trial: FrozenTrial) -> Decision:
        return self.decide(self._trials(study))

    def _trials(self, study: optuna.Study) -> tuple[Trial, ...]:
        if self.trials is not None:
            return self.trials
        stored = study.get_trials(deepcopy=False, states=codec.FINISHED)
        return tuple(codec.trial_of(trial, self.context.limits) for trial in stored)


class BoundedSampler(FrontierSampler):
    """Lets another Optuna sampler propose, and moves what it draws to a config that fits.

    What is tried, and thus what the other sampler learns from, is the nearest config that has not
    been tried. There is a reason to stop if several draws in a row are not new, or if it calls
    `study.stop`.
    """

    def __init__(
        self, other: BaseSampler, space: SearchSpace, **arguments: Any
    ) -> None:
        super().__init__(space, **arguments)
        self._other = other
        self._name = type(other).__name__
        self._wanted = set[FitConfig]()
        self._repeats = 0
        self._has_ended = False

    def decide(self, trials: Sequence[Trial]) -> Decision:
        # only whether to stop: the proposal is made when Optuna asks for a trial
        reason = self.search.propose_near(self.search.configs[0], trials).stop_reason
        if self._repeats >= _MOST_REPEATS:
            reason = f"the last {_MOST_REPEATS} proposals of {self._name} were not new"
        if self._has_ended:
            reason = f"{self._name} has proposed all that it wanted to"
        return Decision(stop_reason=reason)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        with self._explained():
            self._other.before_trial(study, trial)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        with self._explained():
            self._other.after_trial(study, trial, state, values)

    def _choose(self, study: optuna.Study, trial: FrozenTrial) -> Decision:
        trials = self._trials(study)
        with self._explained():
            wanted = self.search.snap(
                self._drawn(study, study.get_trials()[trial.number])
            )
        is_new = wanted not in {*self._wanted, *(each.config for each in trials)}
        self._repeats = 0 if is_new else self._repeats + 1
        self._wanted.add(wanted)
        return self.search.propose_near(wanted, trials)

    def _drawn(self, study: optuna.Study, trial: FrozenTrial) -> FitConfig:
        """Draw each knob as `optuna.Trial` does.

        `trial` is a copy with what the other sampler stored in `before_trial`.
        """
        space = self._other.infer_relative_search_space(study, trial)
        params = dict(self._other.sample_relative(study, trial, space))
        for knob, distribution in self.distributions.items():
            if distribution.single():
                params[knob] = getattr(self.search.configs[0], knob)
        trial.params = params
        for knob, distribution in self.distributions.items():
            if knob not in params:
                draw = self._other.sample_independent
                params[knob] = draw(study, trial, knob, distribution)
            trial.distributions[knob] = distribution
        return FitConfig.of(trial.params)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of the other sampler into `UsageError`.

        Its call of `study.stop`, which raises here, is remembered.
        """
        try:
            yield
        except Exception as error:
            self._has_ended = isinstance(error, RuntimeError) and "Study.stop" in str(
                error
            )
            if not self._has_ended:
                raise UsageError(
                    f"{self._name} failed: {type(error).__name__}: {error}",
                    key="options.sampler",
                ) from error
