"""Decide whether a stored trial or result is still valid under today's limits.

There is one rule: an OOM, a timeout, or a search that came near a limit no longer counts once that limit has grown.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from autofit.records.bounds import Positive
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Measurement

_FAILED = TypeAdapter(dict[Literal["device_bytes", "host_bytes"], Positive])
_LIMIT_SLACK_RATIO = 1.05  # a limit has grown if it exceeds this: a device's free memory varies less from hour to hour
_HELD_BACK_SHARE = 0.5  # of a limit: a search with a trial above this may have avoided larger configs because of the limit


def has_grown(then_bytes: int | None, now_bytes: int | None) -> bool:
    """Return whether a limit has grown; None means no limit."""
    return then_bytes is not None and (now_bytes is None or now_bytes > _LIMIT_SLACK_RATIO * then_bytes)


def lowered(limits: Limits, failed: Any) -> Limits:
    """Lower limits to those stored by `study.mark_failed`, by their names; ignore a stored value that is damaged."""
    with contextlib.suppress(ValidationError):
        for name, size in _FAILED.validate_python(failed or {}).items():
            limits = replace(limits, **{name: min(getattr(limits, name) or size, size)})
    return limits


def trial_holds(measurement: Measurement, then: Limits, now: Limits, max_trial_seconds: float) -> bool:
    """Return whether a trial that ran under the limits `then` would end the same way under the limits `now`."""
    if measurement.outcome is Outcome.TIMEOUT:
        return measurement.evidence.hung or measurement.seconds >= max_trial_seconds
    if not measurement.outcome.is_oom:
        return True
    if measurement.outcome is Outcome.DEVICE_OOM:
        return not has_grown(then.device_bytes, now.device_bytes)
    return not has_grown(then.host_bytes, now.host_bytes)


def result_holds(record: TuneRecord, now: Limits) -> bool:
    """Return whether a result fits today's limits, and no limit that its search came near or exceeded has grown."""
    if record.device_peak_bytes and now.device_bytes is not None and record.device_peak_bytes > now.device_bytes:
        return False
    if record.host_peak_bytes and record.host_peak_bytes > now.host_bytes:
        return False
    then, measurements = record.limits, [trial.measurement for trial in record.trials]
    for oom, peaks, then_bytes, now_bytes in (
        (Outcome.DEVICE_OOM, [m.device_peak_bytes for m in measurements], then.device_bytes, now.device_bytes),
        (Outcome.HOST_OOM, [m.host_peak_bytes for m in measurements], then.host_bytes, now.host_bytes),
    ):
        came_near = any((peak or 0) > _HELD_BACK_SHARE * (then_bytes or 0) for peak in peaks)
        if has_grown(then_bytes, now_bytes) and (came_near or any(m.outcome is oom for m in measurements)):
            return False
    return True


def failure_holds(failed: FailedTune, now: Limits) -> bool:
    """Return whether a workload that did not fit still does not fit: the limit it exceeded has not grown by any amount."""
    name = "device_bytes" if failed.memory == "device" else "host_bytes"
    then_bytes, now_bytes = getattr(failed.limits, name), getattr(now, name)
    return then_bytes is not None and now_bytes is not None and now_bytes <= then_bytes
