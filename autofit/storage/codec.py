"""Convert trials to Optuna trials and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import TypeAdapter, ValidationError

from autofit.records.knobs import AUTOTUNE, FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import (
    DEVICE_MEMORY,
    HOST_MEMORY,
    Evidence,
    Limits,
    Measurement,
    Trial,
)

# the states of Optuna trials that are not run again
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# attributes of an Optuna trial: the trial, and the limits under which it ran
_TRIAL_KEY = "trial"
_LIMITS_KEY = "limits"
_TRIALS = TypeAdapter(Trial)
_LIMITS = TypeAdapter(Limits)
_CONFIGS = TypeAdapter(FitConfig)
# constraint violation assumed for an OOM without a reading above the limit
_OOM_VIOLATION = 0.05
_UNLIMITED_VIOLATION = -1.0


def distributions(knobs: Mapping[str, tuple[Any, ...]]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each knob; `knobs` has the values in ascending order."""
    return {knob: _distribution(values) for knob, values in knobs.items()}


def _distribution(values: tuple[Any, ...]) -> BaseDistribution:
    if all(isinstance(value, bool) for value in values):
        return CategoricalDistribution((False, True))
    # as a number, a sampler would hardly ever draw it
    if AUTOTUNE in values:
        return CategoricalDistribution(values)
    return IntDistribution(values[0], values[-1], log=values[0] > 0)


def frozen_trial(
    trial: Trial, limits: Limits, knobs: Mapping[str, tuple[Any, ...]]
) -> FrozenTrial:
    """Return the Optuna trial that stores a trial."""
    # An OOM is stored as a complete trial that breaks a constraint, so that samplers learn from it.
    # A timeout or a crash is stored as a pruned trial, and does not count in later tunes. Nor does
    # an error of the user's code, a failed trial.
    outcome = trial.measurement.outcome
    state = TrialState.PRUNED
    if outcome is Outcome.OK or outcome.is_oom:
        state = TrialState.COMPLETE
    elif outcome is Outcome.ERROR:
        state = TrialState.FAIL
    constraints = constraints_of(trial.measurement, limits)
    # optuna-dashboard (0.21) looks for them there
    frozen = create_trial(
        params={knob: getattr(trial.config, knob) for knob in knobs},
        distributions=distributions(knobs),
        state=state,
        value=trial.samples_per_second if state is TrialState.COMPLETE else None,
        user_attrs={
            _TRIAL_KEY: _TRIALS.dump_python(trial, mode="json"),
            _LIMITS_KEY: asdict(limits),
        },
        system_attrs={"constraints": list(constraints.values())},
    )
    for name, value in constraints.items():
        frozen.set_constraint(name, value)
    frozen.datetime_start = datetime.now() - timedelta(
        seconds=trial.measurement.seconds
    )
    return frozen


def stored_trials(stored: Iterable[FrozenTrial]) -> Iterator[tuple[Trial, Limits]]:
    """Yield the trials that Optuna trials store, and the limits under which they ran.

    Trials that autofit did not make are skipped, and damaged ones, such as those that finished
    without a rate.
    """
    for frozen in stored:
        with contextlib.suppress(KeyError, ValidationError):
            trial = _TRIALS.validate_python(frozen.user_attrs[_TRIAL_KEY])
            if trial.samples_per_second or trial.measurement.outcome is not Outcome.OK:
                limits = _LIMITS.validate_python(frozen.user_attrs[_LIMITS_KEY])
                yield replace(trial, number=frozen.number), limits


def trial_of(stored: FrozenTrial, limits: Limits) -> Trial:
    """Convert an Optuna trial that autofit or another objective made (see `FrontierSampler`).

    A trial of another objective has samples per second as its value, and its use of each limit as a
    constraint. If it has no value, a broken constraint shows which memory ran out.
    """
    for own, _ in stored_trials([stored]):
        return own
    config = _CONFIGS.validate_python(FitConfig.of(stored.params).values())
    evidence = Evidence("reported by the objective")
    device = stored.constraints.get(DEVICE_MEMORY)
    host = stored.constraints.get(HOST_MEMORY)
    if stored.state is not TrialState.COMPLETE or not stored.value or stored.value <= 0:
        outcome = Outcome.CRASHED
        if (device or 0) > 0:
            outcome = Outcome.DEVICE_OOM
        elif (host or 0) > 0:
            outcome = Outcome.HOST_OOM
        measured = Measurement(outcome, evidence)
    else:
        measured = Measurement(
            Outcome.OK,
            evidence,
            samples_per_second=stored.value,
            compute_samples_per_second=stored.user_attrs.get(
                "compute_samples_per_second"
            ),
            input_samples_per_second=stored.user_attrs.get("input_samples_per_second"),
            device_peak_bytes=_peak_bytes(device, limits.device_bytes or 0),
            host_peak_bytes=_peak_bytes(host, limits.host_bytes),
        )
    return Trial(config, measured, number=stored.number)


def _peak_bytes(violation: float | None, limit_bytes: int) -> int | None:
    return None if violation is None else round((1 + violation) * limit_bytes)


def constraints_of(measurement: Measurement, limits: Limits) -> dict[str, float]:
    """Return the constraint of each memory: its peak divided by its limit, minus one; met at 0 or
    below.
    """
    device = _violation(measurement.device_peak_bytes, limits.device_bytes)
    host = _violation(measurement.host_peak_bytes, limits.host_bytes)
    if measurement.outcome is Outcome.HOST_OOM:
        host = max(host, _OOM_VIOLATION)
    elif measurement.outcome is Outcome.DEVICE_OOM:
        device = max(device, _OOM_VIOLATION)
        host = min(host, 0.0)
    return {DEVICE_MEMORY: device, HOST_MEMORY: host}


def _violation(peak_bytes: int | None, limit_bytes: int | None) -> float:
    if peak_bytes is None or limit_bytes is None:
        return _UNLIMITED_VIOLATION
    return peak_bytes / limit_bytes - 1
