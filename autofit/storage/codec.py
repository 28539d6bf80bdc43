"""How a trial is kept in an Optuna trial, and read from it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import TypeAdapter

from autofit.records.trial import DEVICE_MEMORY, HOST_MEMORY, Evidence, FitConfig, Limits, Measurement, Outcome, Trial

METRIC = "samples per second"
"""What a study maximises, and what its answer reached."""

MEASUREMENT, WHY, LIMITS = "measurement", "why", "limits"
_SHOWN = (
    "compute_samples_per_second",
    "input_samples_per_second",
    "device_peak_bytes",
    "host_peak_bytes",
    "queued_batches",
    "seconds",
)
SPENT = (TrialState.COMPLETE, TrialState.PRUNED)
_MEASUREMENTS = TypeAdapter(Measurement)
_OVER = 0.05  # by how much an OOM is counted over the limit when no reading says so
_UNLIMITED = -1.0
_GROWN = 1.02  # times a limit: what is free on a device varies by as much from one hour to the next


def attributes(trial: Trial, limits: Limits) -> dict[str, Any]:
    """The user attributes that keep why a trial was tried, its limits and its measurement; what people look for first, by
    itself.
    """
    m = trial.measurement
    told = {"outcome": m.outcome.value, "reason": m.evidence.reason}
    told |= {name: value for name in _SHOWN if (value := getattr(m, name)) is not None}
    return {WHY: trial.why, **told, LIMITS: asdict(limits), MEASUREMENT: asdict(m)}


def is_still_valid(kept: FrozenTrial, limits: Limits, max_seconds: float) -> bool:
    """Whether a trial would end now as it did: not where it ran out of less memory, or time (s), than it would have now."""
    if MEASUREMENT not in kept.user_attrs:
        return True
    measurement = _MEASUREMENTS.validate_python(kept.user_attrs[MEASUREMENT])
    outcome, then = measurement.outcome, kept.user_attrs.get(LIMITS)
    if outcome is Outcome.TIMEOUT:
        return measurement.seconds >= max_seconds
    if not outcome.is_oom or then is None:
        return True
    key = "device_bytes" if outcome is Outcome.DEVICE_OOM else "host_bytes"
    had, has = then[key], getattr(limits, key)
    return had is None or (has is not None and has <= _GROWN * had)


def frozen_trial(trial: Trial, limits: Limits, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """The Optuna trial that keeps a trial.

    An OOM is a complete trial that breaks a constraint, so that samplers learn from it; a timeout or a crash is a pruned
    one, never tried again; the user's error is a failed one, and will be.
    """
    state = state_of(trial.measurement)
    constraints = constraints_of(trial.measurement, limits)
    frozen = create_trial(
        params={knob: getattr(trial.config, knob) for knob in distributions},
        distributions=dict(distributions),
        state=state,
        value=(trial.measurement.samples_per_second or 0.0) if state is TrialState.COMPLETE else None,
        user_attrs={
            **attributes(trial, limits),
            **{f"constraint {name}": value for name, value in constraints.items()},
        },
        system_attrs={"constraints": list(constraints.values())},  # where optuna-dashboard (0.21) looks for them
    )
    for name, value in constraints.items():
        frozen.set_constraint(name, value)
    frozen.datetime_start = datetime.now() - timedelta(seconds=trial.measurement.seconds)
    return frozen


def trial_of(stored: FrozenTrial, limits: Limits) -> Trial:
    """The trial that an Optuna trial keeps.

    A trial of somebody else's objective keeps no measurement. Then its value is the samples per second, its constraints say
    how much of the limits it used, one that is broken by a trial without a value says what it ran out of, and the user
    attributes `compute_samples_per_second` and `input_samples_per_second` are the two ceilings, where there are any.
    """
    config = FitConfig.of(stored.params)
    if MEASUREMENT in stored.user_attrs:
        measurement = _MEASUREMENTS.validate_python(stored.user_attrs[MEASUREMENT])
        return Trial(config, measurement, stored.user_attrs.get(WHY, ""))
    if stored.state is not TrialState.COMPLETE:
        return Trial(config, Measurement(Outcome.CRASHED, Evidence("it was pruned")))
    device, host = (stored.constraints.get(name) for name in (DEVICE_MEMORY, HOST_MEMORY))
    told = Evidence("told by the objective")
    if not stored.value or stored.value <= 0:
        broken = [
            outcome for outcome, excess in ((Outcome.DEVICE_OOM, device), (Outcome.HOST_OOM, host)) if (excess or 0) > 0
        ]
        return Trial(config, Measurement(broken[0] if broken else Outcome.CRASHED, told))
    return Trial(
        config,
        Measurement(
            Outcome.OK,
            told,
            samples_per_second=stored.value,
            compute_samples_per_second=stored.user_attrs.get("compute_samples_per_second"),
            input_samples_per_second=stored.user_attrs.get("input_samples_per_second"),
            device_peak_bytes=None if device is None else round((1 + device) * (limits.device_bytes or 0)),
            host_peak_bytes=None if host is None else round((1 + host) * limits.host_bytes),
        ),
    )


def state_of(measurement: Measurement) -> TrialState:
    """An OOM is a complete trial that breaks a constraint, a timeout or a crash a pruned one, an error a failed one."""
    if measurement.outcome is Outcome.OK or measurement.outcome.is_oom:
        return TrialState.COMPLETE
    return TrialState.FAIL if measurement.outcome is Outcome.ERROR else TrialState.PRUNED


def constraints_of(measurement: Measurement, limits: Limits) -> dict[str, float]:
    """Use over limit, minus one: feasible at 0 and below, whatever the outcome."""
    device = _excess(measurement.device_peak_bytes, limits.device_bytes)
    host = _excess(measurement.host_peak_bytes, limits.host_bytes)
    if measurement.outcome is Outcome.DEVICE_OOM:
        device = max(device, _OVER)
    if measurement.outcome is Outcome.HOST_OOM:
        host = max(host, _OVER)
    elif measurement.outcome is Outcome.DEVICE_OOM:
        host = min(host, 0.0)
    return {DEVICE_MEMORY: device, HOST_MEMORY: host}


def _excess(peak_bytes: int | None, limit_bytes: int | None) -> float:
    return _UNLIMITED if limit_bytes is None or peak_bytes is None else peak_bytes / limit_bytes - 1
