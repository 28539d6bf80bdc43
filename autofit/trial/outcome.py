"""Decide the outcome of a trial from its exit status, messages, log and memory readings."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from autofit.backends.protocol import Backend
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Evidence, Limits, Measurement
from autofit.records.units import (
    format_bytes,
    format_seconds,
    how_it_ended,
    signal_name,
)
from autofit.trial.watcher import Breach, Readings
from autofit.trial.wire import Failure, Message

# the parts of a log that are read
_LOG_HEAD_BYTES = 2**18
_LOG_TAIL_BYTES = 2**21
# largest log on disk
_MOST_LOG_BYTES = 2**26
# what the evidence keeps of a log
_TAIL_LINES = 40
_LINE_CHARACTERS = 300
# lines of the allocator's inventory
_NOISE = re.compile(
    r"Chunk at|InUse at|Free  at|Bin \(|Next region of size|Stats: *$"
    r"|Chunks of size \d+ totalling|\] [*_x]{20}"
)
_HOST_OOM_LINES = re.compile(
    r"std::bad_alloc|MemoryError|Cannot allocate memory"
    r"|No space left on device.*(/dev/shm|torch_)"
    r"|[Ff]ailed to allocate pinned host memory"
)
# /dev/shm with less free space than this counts as full
_FULL_BYTES = 2**20
_SHARED_MEMORY_FULL = (
    "with /dev/shm full; give the container more (docker run --shm-size), "
    "or use fewer worker processes"
)
# in torch's message about a page for which /dev/shm has no room
_BUS_ERROR = "Bus error"
_NO_SPACE = os.strerror(errno.ENOSPC)
# of the host limit: a process tree above this, killed from outside, counts as out of memory
_NEAR_LIMIT_SHARE = 0.9


@dataclass(frozen=True)
class TrialEnd:
    """Everything that shows how a trial ended."""

    # the exit status; -N for signal N; None if the trial server was lost
    exit_code: int | None
    messages: Message
    readings: Readings
    started_at: float
    seconds: float
    kernel_oom_kills: int
    log: str


def read_log(path: Path) -> str:
    """Return the captured output of a process: only its beginning and end if it is long."""
    try:
        with path.open("rb") as log:
            head = log.read(_LOG_HEAD_BYTES)
            log.seek(max(len(head), path.stat().st_size - _LOG_TAIL_BYTES))
            return (head + log.read(_LOG_TAIL_BYTES)).decode(errors="replace")
    except OSError:
        return ""


def cap_log(path: Path) -> None:
    """Truncate a large log to its beginning; the process continues to append to it."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > _MOST_LOG_BYTES:
            os.truncate(path, _LOG_HEAD_BYTES)


def classify(
    end: TrialEnd, limits: Limits, backend: Backend, *, on_cpu: bool
) -> Measurement:
    """Decide the outcome of a trial and its reason from all the evidence."""
    # The exit status alone is misleading: a failed allocation can end in an exception, SIGSEGV or
    # an abort, and SIGKILL may come from the watcher, the kernel's OOM killer or a person.
    readings = end.readings
    failure = end.messages.failure
    outcome, reason = _decide(end, limits, backend)
    if outcome is Outcome.DEVICE_OOM and on_cpu and limits.device_bytes is None:
        # without a device limit, the backend's allocator on a CPU uses host memory
        outcome = Outcome.HOST_OOM
    evidence = _evidence_of(end, outcome, reason, backend)
    host_peak_bytes = readings.peak_bytes
    if outcome is Outcome.HOST_OOM:
        # the reading that made the watcher stop the trial counts in any phase
        host_peak_bytes = max(host_peak_bytes, readings.last_bytes)
    measured = end.messages.measurement
    reported = measured or failure
    if measured is None or outcome is not Outcome.OK:
        measured = Measurement(outcome, evidence)
    return replace(
        measured,
        evidence=evidence,
        device_peak_bytes=None if reported is None else reported.device_peak_bytes,
        started_at=end.started_at,
        seconds=end.seconds,
        phase_seconds=readings.seconds_by_phase,
        host_peak_bytes=host_peak_bytes or None,
        host_peak_bytes_by_phase=readings.peak_by_phase,
        driver_peak_bytes=readings.driver_peak_bytes,
        conditions=readings.conditions,
        traceback=failure.traceback
        if failure is not None and outcome is Outcome.ERROR
        else None,
    )


def _evidence_of(
    end: TrialEnd, outcome: Outcome, reason: str, backend: Backend
) -> Evidence:
    failure = end.messages.failure
    texts = [end.log]
    if failure is not None:
        texts.append(failure.traceback or failure.reason)
    lines = end.log.splitlines()
    tail = [line for line in lines if line.strip() and not _NOISE.search(line)][
        -_TAIL_LINES:
    ]
    exit_code = end.exit_code
    killed_by = None
    if exit_code is not None and exit_code < 0:
        killed_by = signal_name(-exit_code)
    is_outside = any(map(backend.outside_pool.search, texts))
    return Evidence(
        reason=reason,
        phase=end.messages.phase,
        exit_code=exit_code,
        signal=killed_by,
        last_host_bytes=end.readings.last_bytes,
        log_tail=tuple(line[:_LINE_CHARACTERS] for line in tail),
        outside_pool=outcome is Outcome.DEVICE_OOM and is_outside,
        hung=outcome is Outcome.TIMEOUT and end.readings.breach is Breach.HANG,
        server_lost=outcome is Outcome.CRASHED and exit_code is None,
    )


def _decide(end: TrialEnd, limits: Limits, backend: Backend) -> tuple[Outcome, str]:
    """Return the outcome of a trial and its reason; what comes first in this order decides."""
    messages = end.messages
    if end.readings.breach is Breach.HOST_LIMIT:
        last_bytes = end.readings.last_bytes
        return Outcome.HOST_OOM, (
            f"ended by the watcher: its processes used {format_bytes(last_bytes)}, "
            f"{last_bytes / limits.host_bytes - 1:.1%} over the host limit of "
            f"{format_bytes(limits.host_bytes)}"
        )
    if messages.measurement is not None:
        peak = messages.measurement.device_peak_bytes
        limit = limits.device_bytes
        if peak is None or limit is None or peak <= limit:
            return Outcome.OK, "finished"
        return (
            Outcome.DEVICE_OOM,
            f"ran, but its peak of {format_bytes(peak)} is over the device limit of "
            f"{format_bytes(limit)}",
        )
    if messages.failure is not None:
        return _of_failure(end, messages.failure, limits, backend)
    return _of_silence(end, limits, _last_match(backend.oom_lines, end.log))


def _of_failure(
    end: TrialEnd, failure: Failure, limits: Limits, backend: Backend
) -> tuple[Outcome, str]:
    """Return the outcome of a trial that reported an error."""
    reason = failure.reason
    if failure.kind is FailureKind.WORKER_DIED:
        if _BUS_ERROR in reason:
            return Outcome.HOST_OOM, f"{reason} {_SHARED_MEMORY_FULL}"
        reason = f"{reason} while {_doing(end)}"
        if end.kernel_oom_kills or _is_near_limit(end, limits):
            return Outcome.HOST_OOM, f"{reason}; {_last_reading(end, limits)}"
        return Outcome.CRASHED, reason
    text = failure.traceback or reason
    is_error = failure.kind is FailureKind.ERROR
    if is_error and _NO_SPACE in text and _is_shared_memory_full(end):
        return Outcome.HOST_OOM, f"the code failed ({_NO_SPACE}) {_SHARED_MEMORY_FULL}"
    # an error that followed a shortage in the log is that of the shortage
    if is_error and backend.suspects.search(text):
        shortage = _last_match(backend.oom_lines, end.log)
        shortage = shortage or _last_match(backend.shortage_lines, end.log)
        if shortage:
            return (
                Outcome.DEVICE_OOM,
                f"{reason}, after the allocator wrote: {shortage}",
            )
    return Outcome(failure.kind), reason


def _of_silence(  # noqa: PLR0911  # the rules in order: the first that matches decides
    end: TrialEnd, limits: Limits, oom_line: str | None
) -> tuple[Outcome, str]:
    """Return the outcome of a trial that reported neither a measurement nor an error."""
    doing = _doing(end)
    reading = _last_reading(end, limits)
    how = "lost together with the trial server"
    if end.exit_code is not None:
        how = how_it_ended(end.exit_code)
    if oom_line is not None:
        return Outcome.DEVICE_OOM, f"{how} after the allocator wrote: {oom_line}"
    if end.kernel_oom_kills:
        killed = f"processes killed by the kernel's OOM killer: {end.kernel_oom_kills}"
        return Outcome.HOST_OOM, f"{how}; {killed}; {reading}"
    if end.readings.breach is Breach.DEADLINE:
        seconds = format_seconds(end.seconds)
        return Outcome.TIMEOUT, f"ended at its deadline after {seconds}, while {doing}"
    if end.readings.breach is Breach.HANG:
        pause = format_seconds(end.readings.pause_seconds)
        return (
            Outcome.TIMEOUT,
            f"hung: its processes were idle for {pause} while {doing}",
        )
    host_line = _last_match(_HOST_OOM_LINES, end.log)
    if host_line is not None:
        return Outcome.HOST_OOM, f"{how} after it wrote: {host_line}; {reading}"
    if end.exit_code == -signal.SIGBUS and _is_shared_memory_full(end):
        return Outcome.HOST_OOM, f"{how} {_SHARED_MEMORY_FULL}"
    if end.exit_code == -signal.SIGKILL and _is_near_limit(end, limits):
        return Outcome.HOST_OOM, f"{how}; {reading}"
    return Outcome.CRASHED, f"{how} while {doing}; {reading}"


def _doing(end: TrialEnd) -> str:
    return (end.messages.phase or Phase.STARTING).label


def _last_reading(end: TrialEnd, limits: Limits) -> str:
    last = end.readings.last_bytes
    limit = limits.host_bytes
    share = f"{last / limit:.0%} of the host limit of {format_bytes(limit)}"
    return f"last reading {format_bytes(last)}, {share}"


def _is_near_limit(end: TrialEnd, limits: Limits) -> bool:
    return end.readings.last_bytes >= _NEAR_LIMIT_SHARE * limits.host_bytes


def _is_shared_memory_full(end: TrialEnd) -> bool:
    return end.readings.least_shared_memory_bytes < _FULL_BYTES


def _last_match(pattern: re.Pattern[str], log: str) -> str | None:
    """Return the last line that matches, without the logger's prefix."""
    for line in reversed(log.splitlines()):
        match = pattern.search(line)
        if match:
            start = match.start("report" if "report" in pattern.groupindex else 0)
            return line[start:].strip()[:_LINE_CHARACTERS]
    return None
