"""Watch one trial from the driver: memory of its process tree, the host limit, the deadline and hangs.

Memory is the sum of the proportional set sizes (PSS) of the tree, which counts each page once, shared or not. A trial hangs
if its processes use no CPU time and read no bytes for longer than expected.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence

import psutil

from autofit.machine import gpus, host
from autofit.machine.host import ProcessMemory
from autofit.records.machine import Device
from autofit.records.states import Phase, Text
from autofit.records.trial import Conditions, TrialSpec

_TREE_SECONDS = 0.25  # between two listings of the tree; for each, psutil reads every process of the host
_PSS_SECONDS = 0.25  # shortest time between two readings of PSS far from the limit
_PSS_DUTY = 0.01  # largest share of the time spent on reading PSS, which blocks allocation in the process that is read
_GROWTH_SHARE = 0.05  # of the last reading: if memory grows by more, the next reading comes sooner
_REST_SECONDS = (0.02, 0.25)  # between two polls: near the limit, and far from it; each poll disturbs the steps a little
_GROWTH_BYTES_PER_SECOND = 8e9  # no process tree grows faster (assumed: pages are cleared at 2 GB/s by a core)
_RETRY_SECONDS = 10.0  # an allocator retries for this long before it fails (TensorFlow's AllocatorRetry): not a hang
_DEVICE_SECONDS = 1.0  # between two queries of the GPU's driver
_IDLE_CPU_SECONDS = 0.1  # CPU time allowed in a pause: threads that wait with a timeout wake up now and then
_LEAST_HANG_SECONDS = 6.0  # shortest pause that counts as a hang
_HANG_RATIO = 5.0  # a pause this many times the longest of a trial that finished counts as a hang
_GAP_SECONDS = 2.0  # longer between two readings: the machine or this process was suspended
_END_SECONDS = 2.0  # longest wait for killed processes, whose memory the next trial needs


class StopReason(Text):
    """Why the watcher stops a trial."""

    HOST_LIMIT = "host limit"
    DEADLINE = "deadline"
    HANG = "hang"


class Watcher:
    """Watches the process tree of the trial server while one trial runs.

    `host_limit_bytes` limits the ΣPSS of the tree. If all processes pause for longer than `most_idle_seconds`, the trial
    counts as hung. A trial that reaches the deadline counts as hung after a pause of half of that. Where an allocator may
    retry, both pauses may take ten seconds more.
    """

    def __init__(
        self,
        server_pid: int,
        host_limit_bytes: int,
        deadline_seconds: float,
        gpus_used: Sequence[Device] = (),
        most_idle_seconds: float = math.inf,
    ) -> None:
        self._root = psutil.Process(server_pid)
        self._limit, self._deadline = host_limit_bytes, time.monotonic() + deadline_seconds
        self._tree: list[psutil.Process] = [self._root]
        self.pauses, self._most_idle_seconds, self.pause_seconds = Pauses(), most_idle_seconds, 0.0
        self._memory: dict[int, ProcessMemory] = {}  # the last reading of each process
        with contextlib.suppress(psutil.Error):  # the server's earlier peak does not count for the trial
            self._memory[server_pid] = ProcessMemory.of(self._root)
        self._tree_due = self._pss_due = self._pss_read = 0.0
        self.last_bytes = 0
        self.reserved_bytes = 0  # memory that counts as used in each reading, in addition to that of the tree
        self.rest_seconds = _REST_SECONDS[0]  # seconds until the next poll
        self.phase, self._phase_began = Phase.STARTING, time.monotonic()
        self.peak_by_phase: dict[Phase, int] = {}
        self._seconds_by_phase: dict[Phase, float] = {}
        self.least_shared_memory_bytes = math.inf
        self.read_shared_memory()
        self.timed = _TimedConditions()
        self._device_due = 0.0
        self._gpus_used_before = {gpu: gpus.used_bytes(gpu, ())[0] for gpu in gpus_used}
        self.driver_peak_bytes: int | None = None  # of the tree on any one GPU, if the GPU's driver reports it

    @property
    def peak_bytes(self) -> int:
        """The highest ΣPSS of the phases that count, in bytes; 0 before the first reading."""
        return max((size for phase, size in self.peak_by_phase.items() if phase.counts), default=0)

    @property
    def seconds_by_phase(self) -> dict[Phase, float]:
        spent = self._seconds_by_phase.get(self.phase, 0.0) + time.monotonic() - self._phase_began
        return {**self._seconds_by_phase, self.phase: spent}

    def enter(self, phase: Phase) -> None:
        """Begin a phase. Present memory use counts for it; a peak since the last reading counts for the previous phase."""
        self._seconds_by_phase = self.seconds_by_phase
        self.timed.read(self._tree, is_timed=self.phase.is_timed)
        ended, self.phase, self._phase_began = self.phase, phase, time.monotonic()
        self._read(ended)

    def shorten(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def poll(self) -> StopReason | None:
        """Take the readings that are due; return why the trial must end, or None if it may continue."""
        now = time.monotonic()
        if now >= self._tree_due:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = [self._root, *self._root.children(recursive=True)]
                if not has_ended(self._root.pid):  # the descendants of an ended process are no longer listed
                    self._tree = tree
            self._tree_due = now + _TREE_SECONDS
            self.pause_seconds = self.pauses.read(self._tree, now)
            self.timed.read(self._tree, is_timed=self.phase.is_timed)
        if now >= self._device_due:
            for gpu, used_before in self._gpus_used_before.items():
                self._read_device(gpu, used_before)
            self._device_due = now + _DEVICE_SECONDS
        self.read_shared_memory()
        # Reading PSS takes milliseconds per process, reading the resident set size (RSS) microseconds. The last PSS plus
        # the growth of RSS since then is an upper bound of the present PSS. PSS is read at once when that bound exceeds the
        # limit, and periodically otherwise.
        if self.last_bytes <= self._limit:  # otherwise the phase that has just ended exceeded the limit
            growth_bytes = self._growth_bytes()
            has_grown = growth_bytes > _GROWTH_SHARE * self.last_bytes and now >= self._pss_read + _PSS_SECONDS
            if has_grown or now >= self._pss_due or self.last_bytes + growth_bytes > self._limit:
                self._read(self.phase)
                self._pss_read, growth_bytes = now, 0
                self._pss_due = now + max(_PSS_SECONDS, (time.monotonic() - now) / _PSS_DUTY)
            shortest, longest = _REST_SECONDS
            growing_seconds = (self._limit - self.last_bytes - growth_bytes) / _GROWTH_BYTES_PER_SECOND
            self.rest_seconds = min(longest, max(shortest, growing_seconds))
        if self.last_bytes > self._limit:
            return StopReason.HOST_LIMIT
        hanging_seconds = self.pause_seconds - (0.0 if self.phase is Phase.INPUT_ALONE else _RETRY_SECONDS)
        if hanging_seconds > self._most_idle_seconds:
            return StopReason.HANG
        if now >= self._deadline:
            return StopReason.HANG if hanging_seconds > self._most_idle_seconds / 2 else StopReason.DEADLINE
        return None

    def _read(self, since: Phase) -> None:
        # The trial server belongs to the tree because it shares the pages of the imported backend. Pages that only the
        # server has written do not count: the user's own process has no second copy of them. PSS counts only a share of
        # the pages that outside processes also map, such as a backend's libraries that the driver has imported. So file
        # pages of the server count in full, and so do file pages that only other processes of the tree map.
        #
        # Peaks between two readings are not lost: if the highest RSS of a process has risen since the last reading, its
        # PSS is assumed to have been higher by the difference between its highest and its present RSS. They count for
        # `since`, the phase at the last reading, which may have ended.
        total, unseen, files_in_part, files = self.reserved_bytes, 0, 0, 0
        for process in self._tree:
            with contextlib.suppress(psutil.Error):
                memory = ProcessMemory.of(process)
                total += memory.proportional - (memory.written if process is self._root else 0)
                files_in_part += memory.proportional_files
                files += memory.resident_files if process is self._root else memory.own_files
                before, self._memory[process.pid] = self._memory.get(process.pid), memory
                if before is None or memory.highest_resident > before.highest_resident:
                    unseen += max(0, memory.highest_resident - memory.resident)
        total += max(0, files - files_in_part)
        self.last_bytes = total + unseen
        for phase, size in ((since, total + unseen), (self.phase, total)):
            self.peak_by_phase[phase] = max(self.peak_by_phase.get(phase, 0), size)

    def _read_device(self, device: Device, used_before: int | None) -> None:
        total_used, tree_used = gpus.used_bytes(device, {process.pid for process in self._tree})
        if tree_used is None and total_used is not None and used_before is not None:
            tree_used = max(0, total_used - used_before)
        if tree_used is not None:
            self.driver_peak_bytes = max(self.driver_peak_bytes or 0, tree_used)
        if self.phase.is_timed:
            self.timed.throttles |= gpus.throttles(device)

    def read_shared_memory(self) -> None:
        """Read the free space in /dev/shm, which a trial may fill within milliseconds."""
        size, free = host.shared_memory()
        if size:  # otherwise the machine has no /dev/shm
            self.least_shared_memory_bytes = min(self.least_shared_memory_bytes, free)

    def end_known(self) -> None:
        """Kill the processes of the last listing that still run; if the server is gone, nothing else ends them."""
        for process in self._tree:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _growth_bytes(self) -> int:  # of RSS since the last reading: an upper bound of the growth of ΣPSS
        growth_bytes = 0
        for process in self._tree:
            with contextlib.suppress(psutil.Error):
                known = self._memory.get(process.pid)
                growth_bytes += max(0, process.memory_info().rss - (0 if known is None else known.resident))
        return growth_bytes


class _TimedConditions:
    """The conditions while the rate of one trial is timed: other work on the cores, and the GPU's clock."""

    def __init__(self) -> None:
        self._before: host.CoreSeconds | None = None
        self._seconds = self._counted_seconds = self._other = self._idle = 0.0
        self.throttles: frozenset[str] = frozenset()

    def read(self, tree: Sequence[psutil.Process], *, is_timed: bool) -> None:
        """Read the load of the cores; the time since the last reading counts if `is_timed`."""
        before, self._before = self._before, host.CoreSeconds.read(tree)
        if before is not None and is_timed:
            seconds = self._before.at - before.at
            self._seconds += seconds
            if (cores := host.other_and_idle_cores(before, self._before)) is not None:
                self._counted_seconds += seconds
                self._other += cores[0] * seconds
                self._idle += cores[1] * seconds

    def conditions(self) -> Conditions | None:
        """Return the means so far; None if the rate was not timed."""
        if not self._seconds:
            return None
        counted = self._counted_seconds
        return Conditions(
            cores=host.visible_cores(),
            other_cores=self._other / counted if counted else None,
            idle_cores=self._idle / counted if counted else None,
            throttles=tuple(sorted(self.throttles)),
        )


class Pauses:
    """Measures the pauses of one process tree; `longest` is the longest so far, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._readings: dict[int, tuple[float, int]] = {}  # CPU seconds and bytes of each process
        self._cpu_seconds = 0.0
        self._began, self._read_at = 0.0, -math.inf

    def read(self, tree: Sequence[psutil.Process], now: float) -> float:
        """Read all processes at `now` on a monotonic clock; return how long the present pause has lasted, in seconds."""
        bytes_read = 0
        for process in tree:
            cpu_before, bytes_before = self._readings.get(process.pid, (0.0, 0))
            try:
                times, size = process.cpu_times(), host.bytes_read(process) or 0
            except psutil.Error:
                continue
            cpu = times.user + times.system
            self._readings[process.pid] = cpu, size
            self._cpu_seconds += max(0.0, cpu - cpu_before)
            bytes_read += max(0, size - bytes_before)
        if self._cpu_seconds >= _IDLE_CPU_SECONDS or bytes_read or now - self._read_at > _GAP_SECONDS:
            self._began, self._cpu_seconds = now, 0.0
        self._read_at = now
        self.longest = max(self.longest, now - self._began)
        return now - self._began


class HangDetector:
    """Learns from finished trials how long a trial may pause before it counts as hung."""

    # Data that waits for a network or a lock also pauses, and for longer if batches are larger. Until a first trial has
    # finished, only the deadline ends a hanging trial.

    def __init__(self) -> None:
        self._pauses: list[tuple[float, int]] = []  # the longest pause of a trial in seconds, and its batch size

    def learn(self, spec: TrialSpec, longest_pause: float) -> None:
        self._pauses.append((longest_pause, spec.config.batch_size or 1))

    def most_idle_seconds(self, spec: TrialSpec) -> float:
        """Return the pause after which a trial counts as hung, in seconds; infinite until a first trial has finished."""
        batch = spec.config.batch_size or 1
        longest = max((seconds * max(1.0, batch / finished) for seconds, finished in self._pauses), default=math.inf)
        return max(_LEAST_HANG_SECONDS, _HANG_RATIO * longest)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if it is not reaped yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_tree(server_pid: int, trial_pid: int) -> None:
    """Kill a trial's process group and all other descendants of the server, and wait until they end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(trial_pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(server_pid).children(recursive=True)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=_END_SECONDS)
