"""FrontierSampler: what `proposal` proposes, as an Optuna sampler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial

from autofit.machine.host import usable_cores
from autofit.records.trial import Description, FitConfig, Limits, Trial
from autofit.search.acquisition import FrontierProposer
from autofit.search.decision import Decision, Proposal, Reason
from autofit.search.space import KERAS_DEFAULTS, SearchSpace, build_space
from autofit.storage import codec

_WHOLE = 2**30  # a limit of which only shares are known
_TPE_STARTUP_TRIALS = 4
_NOTHING_KNOWN = Description(
    input_kind="unknown",
    knobs={},
    sample_count=None,
    sample_bytes=0,
    parameter_count=0,
    parameter_bytes=0,
    optimizer_bytes=0,
    jit_compile=False,
    fingerprint="",
)


class FrontierSampler(optuna.samplers.BaseSampler):
    """Proposes the config with the highest predicted throughput that is predicted to fit, and says when that is settled.

    All that it knows of earlier trials it reads from the Optuna study, so that a resumed study goes on where it was. It
    can be used with plain Optuna:

        sampler = FrontierSampler({"batch_size": (8, 1024), "workers": [1, 2, 4], "max_queue_size": [2, 10]})
        study = optuna.create_study(direction="maximize", sampler=sampler)

        def objective(trial):
            config = sampler.suggest(trial)  # a FitConfig; or trial.suggest_int("batch_size", 8, 1024, log=True), ...
            ...                              # train a little with it
            trial.set_constraint("device_memory", peak_bytes / limit_bytes - 1)
            trial.set_constraint("host_memory", ...)
            return samples_per_second        # 0.0 when it ran out of memory; the constraint that is above 0 says of which

        study.optimize(objective, n_trials=30, callbacks=[sampler.stop_when_settled])

    The user attributes `compute_samples_per_second` (the step alone) and `input_samples_per_second` (the input alone) of a
    trial make it learn faster.

    Args:
        space: a `SearchSpace`, or values by knob: a tuple (lowest, highest) for a range, a list for choices.
        baseline: the present config; Keras's defaults otherwise.
        description: of the workload; what it says of memory makes the first proposals safer.
        limits: in bytes; without them only the shares that the constraints give are known.
        cores: CPU cores; by default all that this process may use.
        on_cpu: whether the model is trained on the CPU.
        tolerance: gains below it do not matter (0.02 is 2 %).
        risk: the share of each limit that the upper bound of a prediction may reach. At 0.97 a tune runs out of memory
            about once in thirty (simulated: see tests/benchmarks/search.py).
        max_oom: after so many OOMs nothing larger than what has run is proposed.
        effective_batch_size: search only batch sizes that divide it.
        warm_start: trials of an earlier tune of the same workload under other limits or versions, that ran to their end.
        seed: makes TPE's proposals repeatable, where it has to step in.

    Raises:
        UsageError: the space is empty or has values that are not legal.
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any],
        *,
        baseline: FitConfig = KERAS_DEFAULTS,
        description: Description = _NOTHING_KNOWN,
        limits: Limits | None = None,
        cores: int | None = None,
        on_cpu: bool = False,
        tolerance: float = 0.02,
        risk: float = 0.97,
        max_oom: int = 2,
        effective_batch_size: int | None = None,
        warm_start: Sequence[Trial] = (),
        seed: int = 0,
    ) -> None:
        cores = cores or usable_cores()
        if not isinstance(space, SearchSpace):
            space = build_space(
                space, tuple(space), cores=cores, sample_count=None, effective_batch_size=effective_batch_size
            )
        self._limits = limits or Limits(_WHOLE, _WHOLE)
        self.proposer = FrontierProposer(
            space,
            space.canonical(baseline),
            description,
            self._limits,
            cores=cores,
            on_cpu=on_cpu,
            tolerance=tolerance,
            risk=risk,
            max_oom=max_oom,
            warm_start=warm_start,
        )
        self._knobs = space.knobs()
        self.distributions = codec.distributions(self._knobs)
        self._tpe = optuna.samplers.TPESampler(multivariate=True, n_startup_trials=_TPE_STARTUP_TRIALS, seed=seed)
        self._study_read, self._read = "", dict[int, Trial]()

    def suggest(self, trial: optuna.Trial) -> FitConfig:
        """The config of a trial that was asked for."""
        for knob, distribution in self.distributions.items():
            if isinstance(distribution, IntDistribution):
                trial.suggest_int(knob, distribution.low, distribution.high, log=distribution.log)
            else:
                trial.suggest_categorical(knob, (False, True))
        return FitConfig.of(trial.params)

    def decide(self, study: optuna.Study) -> Decision:
        """What the sampler would do next, and why."""
        return self.proposer.decide(self._trials(study))

    def propose(self, trials: Sequence[Trial]) -> Decision:
        """The next config after these trials, TPE's where predictions are no guide; or the reason to stop."""
        decision = self.proposer.decide(trials)
        if decision.proposal is not None or decision.stop_reason is not None:
            return decision
        study = optuna.create_study(direction="maximize", sampler=self)
        study.add_trials([codec.frozen_trial(trial, self._limits, self._knobs) for trial in trials])
        config = FitConfig.of(study.ask(self.distributions).params)
        return replace(decision, proposal=Proposal(config, Reason.FALLBACK))

    def rates(self, trials: Sequence[Trial]) -> dict[FitConfig, tuple[float, float]]:
        """For each config that ran, the logarithm of its samples per second and the standard deviation of that."""
        return self.proposer.rates(trials)

    def stop_reason(self, study: optuna.Study) -> str | None:
        """Why no further trial is worth its time, or None."""
        return self.decide(study).stop_reason

    def stop_when_settled(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """A callback for `study.optimize`: stops it when no further trial is worth its time."""
        if self.stop_reason(study) is not None:
            study.stop()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All knobs of the space, from the first trial on."""
        return dict(self.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next config, as parameters; past the point where `stop_reason` gives one, TPE's.

        Raises:
            RuntimeError: no config is left to try.
        """
        decision = self.decide(study)
        if decision.proposal is not None:
            config = decision.proposal.config
        elif decision.candidates:
            drawn = self._tpe.sample_relative(study, trial, search_space)
            middle = decision.candidates[len(decision.candidates) // 2]
            config = min(decision.candidates, key=lambda c: _distance(c, drawn)) if drawn else middle
        else:
            raise RuntimeError(decision.stop_reason)
        return {knob: getattr(config, knob) for knob in search_space}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Parameters that are not knobs are left to TPE."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    def _trials(self, study: optuna.Study) -> tuple[Trial, ...]:
        if study.study_name != self._study_read:
            self._study_read, self._read = study.study_name, {}
        found = study.get_trials(deepcopy=False, states=codec.FINISHED)
        for trial in found:
            if trial.number not in self._read:
                self._read[trial.number] = codec.trial_of(trial, self._limits)
        return tuple(self._read[trial.number] for trial in found)


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
