"""Exit status and evidence -> outcome.

The exit status alone misleads: an allocator's failure can end in an exception, in SIGSEGV or in an abort, and SIGKILL comes
from the watcher, from the kernel's OOM killer or from a person. So the log and the watcher's last reading decide, and the
record keeps why.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.backends.protocol import Backend
from autofit.records.trial import Evidence, Limits, Measurement, Outcome
from autofit.records.units import format_bytes, format_seconds

_TAIL_LINES = 40
_LINE_CHARACTERS = 300
_NOISE = re.compile(r"Chunk at|InUse at|Free  at|Bin \(|Next region of size|Stats: *$")  # the allocator's inventory
_HOST_OOM_LINES = re.compile(
    r"std::bad_alloc|MemoryError|Cannot allocate memory|No space left on device.*(/dev/shm|torch_)"
)
_FULL_BYTES = 2**20  # /dev/shm with less room than this is full
_NEAR_LIMIT = 0.9  # a tree killed from outside above this share of its limit is taken to have run out of memory


@dataclass(frozen=True)
class TrialEnd:
    """All that is known of a trial's end."""

    exit_code: int | None
    """The exit status; -N for signal N; None when the trial server was lost with it."""
    phase: str | None
    measurement: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    stopped: str | None
    """"host limit" or "deadline" when the watcher ended it."""
    last_host_bytes: int
    peak_host_bytes: int
    kernel_oom_kills: int
    seconds: float
    log: str
    host_peak_bytes_by_phase: Mapping[str, int] = field(default_factory=dict)
    driver_peak_bytes: int | None = None
    started_at: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    least_shared_memory_bytes: int | None = None
    """The least room seen in /dev/shm; None where it was not read."""


def read_log(path: Path) -> str:
    """The trial's captured output; empty when there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def classify(ending: TrialEnd, limits: Limits, backend: Backend, *, on_cpu: bool) -> Measurement:
    """Decide the outcome of a trial from all the evidence, and say why.

    On a CPU without a device limit the backend's allocator takes host memory, and its OOM is one of the host.
    """
    oom_line = _last_match(backend.oom_lines, ending.log)
    outcome, reason = _decide(ending, limits, oom_line, _last_match(_HOST_OOM_LINES, ending.log))
    if outcome is Outcome.DEVICE_OOM and on_cpu and limits.device_bytes is None:
        outcome = Outcome.HOST_OOM
    tail = [line for line in ending.log.splitlines() if line.strip() and not _NOISE.search(line)][-_TAIL_LINES:]
    killed_by = ending.exit_code is not None and ending.exit_code < 0
    evidence = Evidence(
        reason=reason,
        phase=ending.phase,
        exit_code=ending.exit_code,
        signal=_signal_name(-ending.exit_code) if killed_by and ending.exit_code else None,
        last_host_bytes=ending.last_host_bytes,
        log_tail=tuple(line[:_LINE_CHARACTERS] for line in tail),
    )
    told = dict(ending.measurement or {})
    if not told and ending.failure:
        told["device_peak_bytes"] = ending.failure.get("device_peak_bytes")
    if outcome is not Outcome.OK:
        told = {k: v for k, v in told.items() if k == "device_peak_bytes"}
    return Measurement(
        outcome=outcome,
        evidence=evidence,
        seconds=ending.seconds,
        host_peak_bytes=_host_peak(ending, outcome) or None,
        host_peak_bytes_by_phase=dict(ending.host_peak_bytes_by_phase),
        driver_peak_bytes=ending.driver_peak_bytes,
        allocator_fallbacks=len(backend.fallback_lines.findall(ending.log)),
        started_at=ending.started_at,
        phase_seconds=dict(ending.phase_seconds),
        traceback=ending.failure.get("traceback") if ending.failure and outcome is Outcome.ERROR else None,
        **told,
    )


def _decide(  # noqa: PLR0911  # the rules in their order: the first that holds decides
    ending: TrialEnd, limits: Limits, oom_line: str | None, host_line: str | None
) -> tuple[Outcome, str]:
    last, limit = ending.last_host_bytes, limits.host_bytes
    reading = f"last reading {format_bytes(last)}, {last / limit:.0%} of the host limit of {format_bytes(limit)}"
    if ending.stopped == "host limit":
        over = last / limit - 1
        return Outcome.HOST_OOM, (
            f"ended by the watcher: its processes used {format_bytes(last)}, "
            f"{over:.1%} over the host limit of {format_bytes(limit)}"
        )
    if ending.measurement is not None:
        peak = ending.measurement.get("device_peak_bytes")
        if peak is not None and limits.device_bytes is not None and peak > limits.device_bytes:
            return Outcome.DEVICE_OOM, (
                f"ran, but its peak of {format_bytes(peak)} is over the device limit of {format_bytes(limits.device_bytes)}"
            )
        return Outcome.OK, "ran to its end"
    if ending.failure is not None:
        kind, told = ending.failure["kind"], str(ending.failure["reason"])
        meanings = {"device_oom": Outcome.DEVICE_OOM, "host_oom": Outcome.HOST_OOM}
        return meanings.get(kind, Outcome.ERROR), told
    how = _how_it_ended(ending.exit_code)
    if oom_line is not None:
        return Outcome.DEVICE_OOM, f"{how} after the allocator wrote: {oom_line}"
    if ending.kernel_oom_kills:
        return Outcome.HOST_OOM, f"{how}; the kernel killed {ending.kernel_oom_kills} process(es) for memory; {reading}"
    if ending.stopped == "deadline":
        return (
            Outcome.TIMEOUT,
            f"ended at its deadline after {format_seconds(ending.seconds)} while: {ending.phase or 'starting'}",
        )
    if host_line is not None:
        return Outcome.HOST_OOM, f"{how} after it wrote: {host_line}; {reading}"
    room = ending.least_shared_memory_bytes
    if ending.exit_code == -signal.SIGBUS and room is not None and room < _FULL_BYTES:
        return Outcome.HOST_OOM, (
            f"{how} with /dev/shm full; give the container more (docker run --shm-size), or use fewer worker processes"
        )
    if ending.exit_code == -signal.SIGKILL and last >= _NEAR_LIMIT * limit:
        return Outcome.HOST_OOM, f"{how}; {reading}"
    return Outcome.CRASHED, f"{how} while: {ending.phase or 'starting'}; {reading}"


def _host_peak(ending: TrialEnd, outcome: Outcome) -> int:
    """The peak; what a tree was ended for counts, in whatever phase it was."""
    return max(ending.peak_host_bytes, ending.last_host_bytes if outcome is Outcome.HOST_OOM else 0)


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "lost together with the trial server"
    return f"died by {_signal_name(-exit_code)}" if exit_code < 0 else f"exited with status {exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_match(pattern: re.Pattern[str], log: str) -> str | None:
    """The last line that matches, from the match on: what stands before it is the logger's."""
    found = [match for line in log.splitlines() if (match := pattern.search(line))]
    return found[-1].string[found[-1].start() :].strip()[:_LINE_CHARACTERS] if found else None
