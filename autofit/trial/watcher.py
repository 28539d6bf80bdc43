"""Watch one trial from the driver: memory of its process tree, the host limit, the deadline and
hangs.

Memory is the sum of the proportional set sizes (PSS) of the tree, which counts each page once,
without those of files that the kernel can read again. A trial hangs if its processes use no CPU
time and read no bytes for longer than expected.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from autofit.machine import gpus, host
from autofit.machine.host import ProcessMemory
from autofit.records.machine import Device
from autofit.records.states import Phase, Text
from autofit.records.trial import Conditions

# between two listings of the tree; for each, psutil reads every process of the host
_TREE_SECONDS = 0.25
# shortest time between two readings of PSS far from the limit
_PSS_SECONDS = 0.25
# largest share of the time spent on reading PSS, which blocks allocation in the process that is
# read
_PSS_DUTY = 0.01
# of the last reading: if memory grows by more, the next reading comes sooner
_GROWTH_SHARE = 0.05
# between two polls: near the limit, and far from it; each poll disturbs the steps a little
_REST_SECONDS = (0.02, 0.25)
# no process tree grows faster (assumed: pages are cleared at 2 GB/s by a core)
_GROWTH_BYTES_PER_SECOND = 8e9
# an allocator retries for this long before it fails (TensorFlow's AllocatorRetry): not a hang
_RETRY_SECONDS = 10.0
# between two queries of the GPU's driver
_DEVICE_SECONDS = 1.0
# CPU time allowed in a pause: threads that wait with a timeout wake up now and then
_IDLE_CPU_SECONDS = 0.1
# shortest pause that counts as a hang
_LEAST_HANG_SECONDS = 6.0
# a pause this many times the longest of a trial that finished counts as a hang
_HANG_RATIO = 5.0
# longer between two readings: the machine or this process was suspended
_GAP_SECONDS = 2.0
# longest wait for resource trackers, which remove what their processes left
_TRACKER_SECONDS = 1.0
# longest wait for killed processes, whose memory the next trial needs
_END_SECONDS = 2.0


class Breach(Text):
    """The bound that a trial broke, so that the watcher ends it."""

    HOST_LIMIT = "host limit"
    DEADLINE = "deadline"
    HANG = "hang"


@dataclass(frozen=True)
class Readings:
    """What the watcher of a trial has read when the trial has ended.

    Memory is the ΣPSS of the tree; `peak_bytes` is its highest in the phases that count.
    `driver_peak_bytes` is of any one GPU, None if its driver reports none.
    """

    breach: Breach | None
    last_bytes: int
    peak_bytes: int
    peak_by_phase: Mapping[Phase, int]
    seconds_by_phase: Mapping[Phase, float]
    driver_peak_bytes: int | None
    least_shared_memory_bytes: float
    pause_seconds: float
    conditions: Conditions | None


class Watcher:
    """Watches the process tree of the trial server while one trial runs.

    `host_limit_bytes` limits the ΣPSS of the tree. If all processes pause for longer than
    `most_idle_seconds`, the trial counts as hung. A trial that reaches the deadline counts as hung
    after a pause of half of that. Where an allocator may retry, both pauses may take ten seconds
    more.
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
        self._limit = host_limit_bytes
        self._deadline = time.monotonic() + deadline_seconds
        self._tree: list[psutil.Process] = [self._root]
        self.pauses = Pauses()
        self._most_idle_seconds = most_idle_seconds
        self.pause_seconds = 0.0
        # the last reading of each process
        self._memory: dict[int, ProcessMemory] = {}
        # the server's earlier peak does not count for the trial
        with contextlib.suppress(psutil.Error):
            self._memory[server_pid] = ProcessMemory.of(self._root)
        self._tree_due = 0.0
        self._device_due = 0.0
        self._pss_due = 0.0
        self._pss_read = 0.0
        self.breach: Breach | None = None
        self.last_bytes = 0
        # memory that counts as used in each reading, in addition to that of the tree
        self.reserved_bytes = 0
        # until the next poll
        self.rest_seconds = _REST_SECONDS[0]
        self.phase = Phase.STARTING
        self._phase_began = time.monotonic()
        self.peak_by_phase: dict[Phase, int] = {}
        self._seconds_by_phase: dict[Phase, float] = {}
        self.least_shared_memory_bytes = math.inf
        self.read_shared_memory()
        self._cores = host.CoreSeconds.read(self._tree)
        self._timed_cores = host.CoreSeconds()
        self._throttles = frozenset[str]()
        self._gpus_used_before = {gpu: gpus.used_bytes(gpu, ())[0] for gpu in gpus_used}
        # of the tree on any one GPU, if the GPU's driver reports it
        self.driver_peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The highest ΣPSS of the phases that count, in bytes; 0 before the first reading."""
        return max(
            (size for phase, size in self.peak_by_phase.items() if phase.counts),
            default=0,
        )

    def readings(self) -> Readings:
        """Return what was read so far."""
        self._count_seconds()
        # means while the rate was timed, if it was
        conditions = None
        if self._timed_cores.at:
            cores = host.other_and_idle_cores(host.CoreSeconds(), self._timed_cores)
            other, idle = cores or (None, None)
            throttles = tuple(sorted(self._throttles))
            conditions = Conditions(host.visible_cores(), other, idle, throttles)
        return Readings(
            breach=self.breach,
            last_bytes=self.last_bytes,
            peak_bytes=self.peak_bytes,
            peak_by_phase=dict(self.peak_by_phase),
            seconds_by_phase=dict(self._seconds_by_phase),
            driver_peak_bytes=self.driver_peak_bytes,
            least_shared_memory_bytes=self.least_shared_memory_bytes,
            pause_seconds=self.pause_seconds,
            conditions=conditions,
        )

    def enter(self, phase: Phase) -> None:
        """Begin a phase.

        Present memory use counts for it; a peak since the last reading counts for the previous
        phase.
        """
        self._count_seconds()
        self._read_cores()
        ended = self.phase
        self.phase = phase
        self._read(ended)

    def _count_seconds(self) -> None:
        now = time.monotonic()
        spent = self._seconds_by_phase.get(self.phase, 0.0)
        self._seconds_by_phase[self.phase] = spent + now - self._phase_began
        self._phase_began = now

    def shorten(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def poll(self) -> Breach | None:
        """Take the readings that are due; return the bound that is broken, or None."""
        now = time.monotonic()
        if now >= self._tree_due:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = [self._root, *self._root.children(recursive=True)]
                # the descendants of an ended process are not listed
                if self._root.status() != psutil.STATUS_ZOMBIE:
                    self._tree = tree
            self._tree_due = now + _TREE_SECONDS
            # the server only waits meanwhile
            self.pause_seconds = self.pauses.read(self._tree[1:], now)
            self._read_cores()
        if now >= self._device_due:
            for gpu, used_before in self._gpus_used_before.items():
                self._read_device(gpu, used_before)
            self._device_due = now + _DEVICE_SECONDS
        self.read_shared_memory()
        # otherwise the phase that has just ended exceeded the limit
        if self.last_bytes <= self._limit:
            self._read_if_due(now)
        self.breach = self._breach_at(now)
        return self.breach

    def _read_if_due(self, now: float) -> None:
        # Reading PSS takes milliseconds per process, reading the resident set size (RSS)
        # microseconds. The last PSS plus the growth of RSS since then is an upper bound of the
        # present PSS. PSS is read at once when that bound exceeds the limit, and periodically
        # otherwise.
        growth_bytes = 0
        for pid, size in host.of_living(
            self._tree, lambda each: (each.pid, each.memory_info().rss)
        ):
            before = self._memory.get(pid)
            growth_bytes += max(0, size - (before.resident if before else 0))
        may_exceed = self.last_bytes + growth_bytes > self._limit
        has_grown = growth_bytes > _GROWTH_SHARE * self.last_bytes
        may_read = now >= self._pss_read + _PSS_SECONDS
        if may_exceed or now >= self._pss_due or (has_grown and may_read):
            self._read(self.phase)
            self._pss_read = now
            growth_bytes = 0
            self._pss_due = now + max(
                _PSS_SECONDS, (time.monotonic() - now) / _PSS_DUTY
            )
        shortest, longest = _REST_SECONDS
        room_bytes = self._limit - self.last_bytes - growth_bytes
        growing_seconds = room_bytes / _GROWTH_BYTES_PER_SECOND
        self.rest_seconds = min(longest, max(shortest, growing_seconds))

    def _breach_at(self, now: float) -> Breach | None:
        if self.last_bytes > self._limit:
            return Breach.HOST_LIMIT
        is_late = now >= self._deadline
        most_seconds = (
            self._most_idle_seconds / 2 if is_late else self._most_idle_seconds
        )
        # the input pipeline alone has no allocator that retries
        if self.phase is not Phase.INPUT_ALONE:
            most_seconds += _RETRY_SECONDS
        if self.pause_seconds > most_seconds:
            return Breach.HANG
        return Breach.DEADLINE if is_late else None

    def _read(self, since: Phase) -> None:
        # The trial server belongs to the tree because it shares the pages of the imported backend.
        # Pages that only the server has written do not count: the user's own process has no second
        # copy of them.
        #
        # Peaks between two readings are not lost: if the highest RSS of a process has risen since
        # the last reading, its memory is assumed to have been higher by the difference between its
        # highest and its present RSS. They count for `since`, the phase at the last reading, which
        # may have ended.
        total = self.reserved_bytes
        unseen = 0
        living = host.of_living(
            self._tree, lambda each: (each.pid, ProcessMemory.of(each))
        )
        for pid, memory in living:
            total += memory.held
            if pid == self._root.pid:
                total -= memory.written
            before = self._memory.get(pid)
            self._memory[pid] = memory
            if before is None or memory.highest_resident > before.highest_resident:
                unseen += max(0, memory.highest_resident - memory.resident)
        self.last_bytes = total + unseen
        self._raise_peak(since, self.last_bytes)
        self._raise_peak(self.phase, total)

    def _raise_peak(self, phase: Phase, size: int) -> None:
        self.peak_by_phase[phase] = max(self.peak_by_phase.get(phase, 0), size)

    def _read_device(self, device: Device, used_before: int | None) -> None:
        total_used, tree_used = gpus.used_bytes(
            device, {process.pid for process in self._tree}
        )
        if tree_used is None and total_used is not None and used_before is not None:
            tree_used = max(0, total_used - used_before)
        if tree_used is not None:
            self.driver_peak_bytes = max(self.driver_peak_bytes or 0, tree_used)
        if self.phase.is_timed:
            self._throttles |= gpus.throttles(device)

    def _read_cores(self) -> None:
        before = self._cores
        self._cores = host.CoreSeconds.read(self._tree)
        if self.phase.is_timed:
            self._timed_cores = self._timed_cores.plus(before, self._cores)

    def read_shared_memory(self) -> None:
        """Read the free space in /dev/shm, which a trial may fill within milliseconds."""
        size, free = host.shared_memory()
        # otherwise the machine has no /dev/shm
        if size:
            self.least_shared_memory_bytes = min(self.least_shared_memory_bytes, free)

    def end(self, trial_pid: int) -> None:
        """End the trial's process group and all other processes below the server, and wait."""
        # If the server is gone, nothing else lists or ends them.
        end_below(self._root, self._tree[1:])
        # Its resource tracker is of this group, and has had its time.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(trial_pid, signal.SIGKILL)


class Pauses:
    """Measures the pauses of one process tree; `longest` is the longest so far, in seconds."""

    longest = 0.0
    # of the tree when the present pause began
    _cpu_seconds = 0.0
    _bytes_read = 0
    _began = 0.0
    _read_at = -math.inf

    def read(self, tree: Sequence[psutil.Process], now: float) -> float:
        """Read all processes at `now` on a monotonic clock; return the seconds of the present
        pause.
        """
        cpu_seconds = host.cpu_seconds(tree)
        # not from the page cache
        bytes_read = sum(
            host.of_living(tree, lambda process: process.io_counters().read_bytes)
        )
        # an end of a process takes its numbers away, and is progress, too
        has_worked = abs(cpu_seconds - self._cpu_seconds) >= _IDLE_CPU_SECONDS
        has_read = bytes_read != self._bytes_read
        if has_worked or has_read or now - self._read_at > _GAP_SECONDS:
            self._began = now
            self._cpu_seconds = cpu_seconds
            self._bytes_read = bytes_read
        self._read_at = now
        self.longest = max(self.longest, now - self._began)
        return now - self._began


def hang_seconds(pauses: Sequence[tuple[float, int]], batch_size: int) -> float:
    """Return the pause after which a trial counts as hung, in seconds.

    `pauses` has the longest pause of each trial that finished, in seconds, and its batch size. The
    result is infinite until a first trial has finished: only the deadline ends a hanging trial
    then.
    """
    # data that waits for a network or a lock also pauses, and for longer if batches are larger
    expected = [
        seconds * max(1.0, batch_size / finished) for seconds, finished in pauses
    ]
    return max(_LEAST_HANG_SECONDS, _HANG_RATIO * max(expected, default=math.inf))


def end_below(server: psutil.Process, known: Sequence[psutil.Process] = ()) -> None:
    """Kill all descendants of a server, also those of an earlier listing; wait until they end."""
    below = set(known)
    with contextlib.suppress(psutil.NoSuchProcess):
        below.update(server.children(recursive=True))
    trackers = {process for process in below if _is_tracker(process)}
    others = below - trackers
    host.of_living(others, psutil.Process.kill)
    psutil.wait_procs(others, timeout=_END_SECONDS)
    # A tracker removes what is left in /dev/shm once the last process that uses it has ended.
    psutil.wait_procs(trackers, timeout=_TRACKER_SECONDS)
    host.of_living(trackers, psutil.Process.kill)
    psutil.wait_procs(trackers, timeout=_END_SECONDS)


def _is_tracker(process: psutil.Process) -> bool:
    """Return whether a process is Python's own that removes shared memory and semaphores."""
    return any(
        "multiprocessing.resource_tracker" in argument
        for command in host.of_living([process], psutil.Process.cmdline)
        for argument in command
    )
