"""Whether a stored trial or result is still valid under the limits of today.

One rule: an OOM, a timeout, or a search near a limit no longer counts once the limit that caused it has grown.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofit.records.result import FailedTune, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Measurement

LIMIT_SLACK_RATIO = 1.05
"""A limit has grown when it exceeds this ratio: the free memory of a device varies by less from hour to hour."""

_HELD_BACK_SHARE = 0.5  # of a limit: a search with a trial above this may have avoided larger configs because of the limit


def has_grown(then_bytes: int | None, now_bytes: int | None) -> bool:
    """Whether a limit has grown; None means no limit."""
    return then_bytes is not None and (now_bytes is None or now_bytes > LIMIT_SLACK_RATIO * then_bytes)


def trial_holds(measurement: Measurement, then: Limits, now: Limits, max_trial_seconds: float) -> bool:
    """Whether a trial would end the same way today.

    Args:
        measurement: the trial's measurement.
        then: the limits that it ran under.
        now: the limits of today.
        max_trial_seconds: the longest time that a trial may take today.
    """
    if measurement.outcome is Outcome.TIMEOUT:
        return measurement.evidence.hung or measurement.seconds >= max_trial_seconds
    if not measurement.outcome.is_oom:
        return True
    if measurement.outcome is Outcome.DEVICE_OOM:
        return not has_grown(then.device_bytes, now.device_bytes)
    return not has_grown(then.host_bytes, now.host_bytes)


def result_holds(record: TuneRecord, now: Limits) -> bool:
    """Whether a result fits the limits of today, and no limit that its search came near has grown."""
    device_fits = now.device_bytes is None or (record.device_peak_bytes or 0) <= now.device_bytes
    if not device_fits or (record.host_peak_bytes or 0) > now.host_bytes:
        return False
    then, measurements = record.limits, [trial.measurement for trial in record.trials]
    if has_grown(then.device_bytes, now.device_bytes) and then.device_bytes is not None:
        peaks = [m.device_peak_bytes for m in measurements]
        if _was_held_back(measurements, Outcome.DEVICE_OOM, peaks, then.device_bytes):
            return False
    peaks = [m.host_peak_bytes for m in measurements]
    grown = has_grown(then.host_bytes, now.host_bytes)
    return not (grown and _was_held_back(measurements, Outcome.HOST_OOM, peaks, then.host_bytes))


def failure_holds(failed: FailedTune, now: Limits) -> bool:
    """Whether a workload that did not fit still does not: its limit has not grown at all."""
    if failed.memory == "device":
        then_bytes, now_bytes = failed.limits.device_bytes, now.device_bytes
    else:
        then_bytes, now_bytes = failed.limits.host_bytes, now.host_bytes
    return then_bytes is not None and now_bytes is not None and now_bytes <= then_bytes


def _was_held_back(
    measurements: Sequence[Measurement], oom: Outcome, peaks: Sequence[int | None], limit_bytes: int
) -> bool:
    """Whether a search came near a limit: a trial ran out of memory, or used a large share of it."""
    near_bytes = _HELD_BACK_SHARE * limit_bytes
    return any(m.outcome is oom for m in measurements) or any((peak or 0) > near_bytes for peak in peaks)
