"""Decide whether a stored trial or result is still valid under today's limits.

There is one rule: an OOM, a timeout, or a search that came near a limit no longer counts once that limit has grown. What
else must be the same for a result to be found is in its key (`tuning/request.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autofit.records.result import FailedTune, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Measurement

_LIMIT_SLACK_RATIO = 1.05  # a limit has grown if it exceeds this: a device's free memory varies less from hour to hour
_HELD_BACK_SHARE = 0.5  # of a limit: a search with a trial above this may have avoided larger configs because of the limit


def _has_grown(memory: str, then: Limits, now: Limits, slack_ratio: float = _LIMIT_SLACK_RATIO) -> bool:
    then_bytes, now_bytes = (getattr(limits, f"{memory}_bytes") for limits in (then, now))
    return then_bytes is not None and (now_bytes is None or now_bytes > slack_ratio * then_bytes)


def lowered(limits: Limits, failed: Mapping[str, int] | None) -> Limits:
    """Lower limits to those stored by `study.mark_failed`, by their names."""
    return replace(limits, **{name: min(getattr(limits, name) or size, size) for name, size in (failed or {}).items()})


def trial_holds(measurement: Measurement, then: Limits, now: Limits, max_trial_seconds: float) -> bool:
    """Return whether a trial that ran under the limits `then` would end the same way under the limits `now`."""
    if measurement.outcome is Outcome.TIMEOUT:
        return measurement.evidence.hung or measurement.seconds >= max_trial_seconds
    return not measurement.outcome.is_oom or not _has_grown(measurement.outcome.removesuffix("_oom"), then, now)


def result_holds(record: TuneRecord | FailedTune, now: Limits) -> bool:
    """Return whether a result fits today's limits, and no limit that its search came near or exceeded has grown."""
    if isinstance(record, FailedTune):  # what did not fit still does not, unless the limit has grown by any amount
        return not _has_grown(record.memory or "host", record.limits, now, slack_ratio=1)
    if not now.allow(record.device_peak_bytes or 0, record.host_peak_bytes or 0):
        return False
    for memory in ("device", "host"):
        near_bytes = _HELD_BACK_SHARE * (getattr(record.limits, f"{memory}_bytes") or 0)
        for measurement in (trial.measurement for trial in record.trials):
            came_near = (getattr(measurement, f"{memory}_peak_bytes") or 0) > near_bytes
            if (came_near or measurement.outcome == f"{memory}_oom") and _has_grown(memory, record.limits, now):
                return False
    return True
