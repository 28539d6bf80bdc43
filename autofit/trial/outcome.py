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
from autofit.records.units import format_bytes, format_seconds, how_it_ended, signal_name
from autofit.trial.watcher import StopReason, Watcher
from autofit.trial.wire import Failure, Message

# the parts of a log that are read
_LOG_HEAD_BYTES = 2**18
_LOG_TAIL_BYTES = 2**21
_MOST_LOG_BYTES = 2**26  # largest log on disk
# what the evidence keeps of a log
_TAIL_LINES = 40
_LINE_CHARACTERS = 300
_NOISE = re.compile(  # lines of the allocator's inventory
    r"Chunk at|InUse at|Free  at|Bin \(|Next region of size|Stats: *$|Chunks of size \d+ totalling|\] [*_x]{20}"
)
_HOST_OOM_LINES = re.compile(
    r"std::bad_alloc|MemoryError|Cannot allocate memory|No space left on device.*(/dev/shm|torch_)"
    r"|[Ff]ailed to allocate pinned host memory"
)
_FULL_BYTES = 2**20  # /dev/shm with less free space than this counts as full
_SHARED_MEMORY_FULL = "with /dev/shm full; give the container more (docker run --shm-size), or use fewer worker processes"
_BUS_ERROR = "Bus error"  # in torch's message about a page for which /dev/shm has no room
_NO_SPACE = os.strerror(errno.ENOSPC)
_NEAR_LIMIT_SHARE = 0.9  # of the host limit: a process tree above this, killed from outside, counts as out of memory


@dataclass(frozen=True)
class TrialEnd:
    """Everything that shows how a trial ended."""

    exit_code: int | None  # the exit status; -N for signal N; None if the trial server was lost
    messages: Message
    watcher: Watcher
    started_at: float
    seconds: float
    kernel_oom_kills: int
    log: str


def read_log(path: Path) -> str:
    """Read the captured output of a process: only its beginning and end if it is long, "" if there is none."""
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


def classify(end: TrialEnd, limits: Limits, backend: Backend, *, on_cpu: bool) -> Measurement:
    """Decide the outcome of a trial and its reason from all the evidence."""
    # The exit status alone is misleading: a failed allocation can end in an exception, SIGSEGV or an abort, and SIGKILL may
    # come from the watcher, the kernel's OOM killer or a person.
    watcher = end.watcher
    measured = end.messages.measurement
    failure = end.messages.failure
    oom_line = _last_match(backend.oom_lines, end.log)
    outcome, reason = _decide(end, limits, oom_line, _last_match(_HOST_OOM_LINES, end.log))
    shortage = oom_line or _last_match(backend.shortage_lines, end.log)
    if (
        outcome is Outcome.ERROR
        and shortage
        and failure
        and backend.suspects.search(failure.traceback or reason)
    ):
        outcome = Outcome.DEVICE_OOM
        reason = f"{reason}, after the allocator wrote: {shortage}"
    if outcome is Outcome.DEVICE_OOM and on_cpu and limits.device_bytes is None:
        # without a device limit, the backend's allocator on a CPU uses host memory
        outcome = Outcome.HOST_OOM
    texts = [end.log] if failure is None else [end.log, failure.traceback or failure.reason]
    tail = [line for line in end.log.splitlines() if line.strip() and not _NOISE.search(line)][
        -_TAIL_LINES:
    ]
    evidence = Evidence(
        reason=reason,
        phase=end.messages.phase,
        exit_code=end.exit_code,
        signal=signal_name(-end.exit_code)
        if end.exit_code is not None and end.exit_code < 0
        else None,
        last_host_bytes=watcher.last_bytes,
        log_tail=tuple(line[:_LINE_CHARACTERS] for line in tail),
        outside_pool=outcome is Outcome.DEVICE_OOM and any(map(backend.outside_pool.search, texts)),
        hung=outcome is Outcome.TIMEOUT and end.watcher.stopped is StopReason.HANG,
        server_lost=outcome is Outcome.CRASHED and end.exit_code is None,
    )
    reported = measured or failure
    # the reading that made the watcher stop the trial counts in any phase
    host_peak_bytes = max(
        watcher.peak_bytes, watcher.last_bytes if outcome is Outcome.HOST_OOM else 0
    )
    if measured is None or outcome is not Outcome.OK:
        measured = Measurement(outcome, evidence)
    return replace(
        measured,
        evidence=evidence,
        device_peak_bytes=None if reported is None else reported.device_peak_bytes,
        started_at=end.started_at,
        seconds=end.seconds,
        phase_seconds=watcher.seconds_by_phase,
        host_peak_bytes=host_peak_bytes or None,
        host_peak_bytes_by_phase=watcher.peak_by_phase,
        driver_peak_bytes=watcher.driver_peak_bytes,
        conditions=watcher.conditions(),
        traceback=failure.traceback if failure is not None and outcome is Outcome.ERROR else None,
    )


def _decide(  # noqa: PLR0911  # the rules in order: the first that matches decides
    end: TrialEnd, limits: Limits, oom_line: str | None, host_line: str | None
) -> tuple[Outcome, str]:
    messages = end.messages
    last = end.watcher.last_bytes
    limit = limits.host_bytes
    doing = (messages.phase or Phase.STARTING).label
    reading = f"last reading {format_bytes(last)}, {last / limit:.0%} of the host limit of {format_bytes(limit)}"
    if end.watcher.stopped is StopReason.HOST_LIMIT:
        return Outcome.HOST_OOM, (
            f"ended by the watcher: its processes used {format_bytes(last)}, "
            f"{last / limit - 1:.1%} over the host limit of {format_bytes(limit)}"
        )
    if messages.measurement is not None:
        peak = messages.measurement.device_peak_bytes
        if peak is not None and limits.device_bytes is not None and peak > limits.device_bytes:
            return Outcome.DEVICE_OOM, (
                f"ran, but its peak of {format_bytes(peak)} is over the device limit of {format_bytes(limits.device_bytes)}"
            )
        return Outcome.OK, "finished"
    if messages.failure is not None:
        return _of_failure(end, messages.failure, limits, doing, reading)
    how = (
        "lost together with the trial server"
        if end.exit_code is None
        else how_it_ended(end.exit_code)
    )
    if oom_line is not None:
        return Outcome.DEVICE_OOM, f"{how} after the allocator wrote: {oom_line}"
    if end.kernel_oom_kills:
        return (
            Outcome.HOST_OOM,
            f"{how}; processes killed by the kernel's OOM killer: {end.kernel_oom_kills}; {reading}",
        )
    if end.watcher.stopped is StopReason.DEADLINE:
        return (
            Outcome.TIMEOUT,
            f"ended at its deadline after {format_seconds(end.seconds)}, while {doing}",
        )
    if end.watcher.stopped is StopReason.HANG:
        pause = format_seconds(end.watcher.pause_seconds)
        return Outcome.TIMEOUT, f"hung: its processes were idle for {pause} while {doing}"
    if host_line is not None:
        return Outcome.HOST_OOM, f"{how} after it wrote: {host_line}; {reading}"
    if end.exit_code == -signal.SIGBUS and end.watcher.least_shared_memory_bytes < _FULL_BYTES:
        return Outcome.HOST_OOM, f"{how} {_SHARED_MEMORY_FULL}"
    if end.exit_code == -signal.SIGKILL and last >= _NEAR_LIMIT_SHARE * limit:
        return Outcome.HOST_OOM, f"{how}; {reading}"
    return Outcome.CRASHED, f"{how} while {doing}; {reading}"


def _of_failure(
    end: TrialEnd, failure: Failure, limits: Limits, doing: str, reading: str
) -> tuple[Outcome, str]:
    if failure.kind is FailureKind.WORKER_DIED and _BUS_ERROR in failure.reason:
        return Outcome.HOST_OOM, f"{failure.reason} {_SHARED_MEMORY_FULL}"
    if failure.kind is FailureKind.WORKER_DIED:
        is_full = (
            bool(end.kernel_oom_kills)
            or end.watcher.last_bytes >= _NEAR_LIMIT_SHARE * limits.host_bytes
        )
        reason = f"{failure.reason} while {doing}"
        return (
            Outcome.HOST_OOM if is_full else Outcome.CRASHED
        ), f"{reason}; {reading}" if is_full else reason
    has_no_space = _NO_SPACE in (failure.traceback or failure.reason)
    if (
        failure.kind is FailureKind.ERROR
        and has_no_space
        and end.watcher.least_shared_memory_bytes < _FULL_BYTES
    ):
        return Outcome.HOST_OOM, f"the code failed ({_NO_SPACE}) {_SHARED_MEMORY_FULL}"
    return Outcome(failure.kind), failure.reason


def _last_match(pattern: re.Pattern[str], log: str) -> str | None:
    # without the logger's prefix
    for line in reversed(log.splitlines()):
        if match := pattern.search(line):
            start = match.start("report" if "report" in pattern.groupindex else 0)
            return line[start:].strip()[:_LINE_CHARACTERS]
    return None
