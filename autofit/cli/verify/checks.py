"""The checks of `autofit verify`: each measures something known in trials like those of a tune.

A check returns what was found beside what is known. It is a problem if the difference is larger than a tune could bear, and
a warning if this machine cannot show it.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from autofit.backends.protocol import Backend
from autofit.cli.findings import Finding, Status, ok, problem, warning
from autofit.cli.verify import workloads
from autofit.machine.device_lock import DeviceLock
from autofit.records.events import Activity
from autofit.records.machine import Machine, Placement
from autofit.records.states import Outcome, Role
from autofit.records.trial import FitConfig, Limits, Measurement, TrialSpec
from autofit.records.units import format_bytes, format_seconds
from autofit.trial.launcher import ProcessLauncher, run_to_end
from autofit.workload.workload import Workload

MIB = 2**20
_REMEDY = "Do not rely on figures from this machine; please report this with the output of autofit doctor --json."
_DEADLINE_SECONDS, _FAULT_SECONDS = 90.0, 30.0
_MEASURE_SECONDS = 1.5
_PLAIN = FitConfig(workloads.BATCH, 1, 10, False)
_FAULTY = FitConfig(workloads.BATCH + 1, 1, 10, False)
_RATE_ERROR, _MEMORY_ERROR = 0.05, 0.08  # relative, at most
_BATCH_SECONDS, _STEP_SECONDS, _WORKERS = 0.02, 0.05, 2
_HELD_BYTES, _WEIGHT_BYTES = 384 * MIB, 256 * MIB
_WIDTH, _QUEUE = 272 * 1024, 24  # numbers of a sample, and batches: 34 MiB each, more than malloc reuses
_QUEUE_ERROR = 0.16  # relative: steps hold up to three batches more at some moments
_ROOM_BYTES = 512 * MIB  # above what a trial takes, for the host's limit
_SAME_RUNS, _SAME_ERROR = 3, 0.06
_LOCK_SECONDS = 20.0
_ACQUIRE = """
import sys
from autofit.machine.device_lock import DeviceLock
from autofit.records.machine import ON_CPU
sys.exit(0 if DeviceLock(ON_CPU, "verify").acquire() else 3)
"""


@dataclass(frozen=True)
class Bench:
    """Runs trials of known workloads on one device."""

    launcher: ProcessLauncher
    machine: Machine
    placement: Placement
    backend: Backend

    def run(self, workload: Workload, config: FitConfig = _PLAIN, **how: Any) -> Measurement:
        """Run one trial of a workload; `how` are further arguments of `again`."""
        self.launcher.change(workload)
        return self.again(config, **how)

    def again(
        self,
        config: FitConfig = _PLAIN,
        *,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        seconds: float = _DEADLINE_SECONDS,
        **spec: Any,
    ) -> Measurement:
        """Run a trial of the same workload as before."""
        gpu = self.placement.device
        limits = Limits(
            device_bytes or (None if gpu is None else gpu.free_bytes // 2), host_bytes or self.machine.available_bytes
        )
        spec = {"role": Role.MEASURE, "measure_seconds": _MEASURE_SECONDS, **spec}
        role = spec.pop("role")
        measured = run_to_end(self.launcher.run(TrialSpec(role, config, limits, seconds, **spec)))
        assert isinstance(measured, Measurement), "only a describing trial returns a description"
        return measured


def run(bench: Bench, subjects: Iterable[str]) -> Iterator[Finding | Activity]:
    """Run the checks of these subjects; yield an Activity before each."""
    for subject in subjects:
        yield Activity(f"measuring: {subject}")
        yield replace(CHECKS[subject](bench), subject=subject)


def _failed(measured: Measurement) -> Finding | None:
    if measured.outcome is Outcome.OK:
        return None
    return problem("", f"the trial failed: {measured.outcome.value}, {measured.evidence.reason}", _REMEDY)


def _compared(found: float, known: float, most_error: float, what: str) -> Finding:
    """Compare a figure with what is known; `most_error` is relative."""
    error = found / known - 1
    text = f"{error:+.1%}: {what}"
    return ok("", text) if abs(error) <= most_error else problem("", text, _REMEDY)


def _input_rate(bench: Bench) -> Finding:
    config = FitConfig(workloads.BATCH, _WORKERS, 10, use_multiprocessing=False)
    measured = bench.run(workloads.workload({"seconds": _BATCH_SECONDS}), config)
    if failed := _failed(measured):
        return failed
    known = _WORKERS * workloads.BATCH / _BATCH_SECONDS
    alone = (measured.input_samples_per_second or 0.0) / known - 1
    what = f"fit on {_WORKERS} threads that sleep {1000 * _BATCH_SECONDS:g} ms for a batch; without a model {alone:+.1%}"
    finding = _compared(measured.samples_per_second or 0.0, known, _RATE_ERROR, what)
    return finding if abs(alone) <= _RATE_ERROR else problem("", finding.detail, _REMEDY)


def _step_rate(bench: Bench) -> Finding:
    seconds = []
    for step_seconds in (0.0, _STEP_SECONDS):
        measured = bench.run(workloads.workload(model={"step_seconds": step_seconds}))
        if failed := _failed(measured):
            return failed
        seconds.append(workloads.BATCH / (measured.compute_samples_per_second or math.inf))
    what = f"the time that a step takes longer if it sleeps {1000 * _STEP_SECONDS:g} ms"
    return _compared(seconds[1] - seconds[0], _STEP_SECONDS, _RATE_ERROR, what)


def _same_twice(bench: Bench) -> Finding:
    """Pairs of one configuration; again if their interval excludes 1, which one of 95 % does by chance once in 20."""
    found = _pairs_of_one(bench)
    return _pairs_of_one(bench) if found.status is Status.PROBLEM else found


def _pairs_of_one(bench: Bench) -> Finding:
    from autofit.records.intervals import sequential_interval  # loads SciPy, which takes a second

    bench.launcher.change(workloads.workload({"seconds": _BATCH_SECONDS}))
    runs = [bench.again(input_samples_per_second=1e9, compute_samples_per_second=1e9) for _ in range(2 * _SAME_RUNS)]
    if failed := next(filter(None, map(_failed, runs)), None):
        return failed
    logs = [math.log(run.samples_per_second or 1.0) for run in runs]
    mean, half_width = sequential_interval(logs[::2], logs[1::2])
    low, high = math.exp(mean - half_width), math.exp(mean + half_width)
    text = f"{low:.2f} to {high:.2f}: one configuration against itself, {_SAME_RUNS} pairs of runs"
    if low > 1 or high < 1:
        return problem("", text, _REMEDY)
    return ok("", text) if half_width <= _SAME_ERROR else warning("", text, "Other work disturbs this machine; end it.")


def _host_memory(bench: Bench) -> Finding:
    """An array that is shared with two worker processes counts once."""
    config = FitConfig(
        workloads.BATCH, 2, 2, use_multiprocessing=bench.backend.process_problem(bench.placement.device) is None
    )
    peaks = []
    for held_bytes in (0, _HELD_BYTES):
        measured = bench.run(workloads.workload({"held_bytes": held_bytes, "seconds": 0.002}), config)
        if failed := _failed(measured):
            return failed
        peaks.append(measured.host_peak_bytes or 0)
    shared = " shared with two worker processes" if config.use_multiprocessing else ""
    what = f"an array of {format_bytes(_HELD_BYTES)}{shared}"
    return _compared(peaks[1] - peaks[0], _HELD_BYTES, _MEMORY_ERROR, what)


def _queue_memory(bench: Bench) -> Finding:
    batch_bytes = 4 * workloads.BATCH * _WIDTH
    if bench.machine.available_bytes < 4 * _QUEUE * batch_bytes:
        return _not_here(f"{format_bytes(bench.machine.available_bytes)} of memory is free")
    measured, peaks = None, []
    for size in (1, _QUEUE):
        known = workloads.workload({"width": _WIDTH}, {"width": _WIDTH, "step_seconds": _STEP_SECONDS})
        measured = bench.run(known, FitConfig(workloads.BATCH, 2, size, use_multiprocessing=False))
        if failed := _failed(measured):
            return failed
        peaks.append(measured.host_peak_bytes or 0)
    assert measured is not None
    what = f"{_QUEUE - 1} more batches of {format_bytes(batch_bytes)} in the queue; {measured.queued_batches} were counted"
    finding = _compared(peaks[1] - peaks[0], (_QUEUE - 1) * batch_bytes, _QUEUE_ERROR, what)
    is_counted = _QUEUE <= (measured.queued_batches or 0) <= _QUEUE + 3  # one for each worker, and the one that waits
    return finding if is_counted else problem("", finding.detail, _REMEDY)


def _device_memory(bench: Bench) -> Finding:
    if missing := _no_device_memory(bench):
        return missing
    peaks = []
    for weight_bytes in (4, _WEIGHT_BYTES):
        measured = bench.run(workloads.workload(model={"weight_bytes": weight_bytes}), device_bytes=_limit(bench))
        if failed := _failed(measured):
            return failed
        peaks.append(measured.device_peak_bytes or 0)
    return _compared(peaks[1] - peaks[0], _WEIGHT_BYTES, _MEMORY_ERROR, f"weights of {format_bytes(_WEIGHT_BYTES)}")


def _device_oom(bench: Bench) -> Finding:
    if missing := _no_device_memory(bench):
        return missing
    model = {"weight_bytes": 4 * _limit(bench)}
    measured = bench.run(workloads.workload(model=model), device_bytes=_limit(bench))
    return _outcome(measured, Outcome.DEVICE_OOM, f"weights of {format_bytes(model['weight_bytes'])}")


def _host_oom(bench: Bench) -> Finding:
    usual = bench.run(workloads.workload({"fault": "leak"}))
    if failed := _failed(usual):
        return failed
    limit = (usual.host_peak_bytes or 0) + _ROOM_BYTES
    measured = bench.again(_FAULTY, host_bytes=limit)
    finding = _outcome(measured, Outcome.HOST_OOM, f"data that grows beyond a limit of {format_bytes(limit)}")
    last = measured.evidence.last_host_bytes or 0
    return finding if last <= 1.5 * limit else problem("", f"{finding.detail}; it reached {format_bytes(last)}", _REMEDY)


def _hang(bench: Bench) -> Finding:
    bench.run(workloads.workload({"fault": "hang"}))  # the longest pause of a trial that finishes says what a hang is
    measured = bench.again(_FAULTY, seconds=_FAULT_SECONDS)
    what = f"data that waits for ever, ended after {format_seconds(measured.seconds)}"
    finding = _outcome(measured, Outcome.TIMEOUT, what)
    return finding if measured.evidence.hung else problem("", f"{finding.detail}, but not as a hang", _REMEDY)


def _kill(bench: Bench) -> Finding:
    measured = bench.run(workloads.workload({"fault": "kill"}), _FAULTY)
    return _outcome(measured, Outcome.CRASHED, "a process that is killed")


def _turns(bench: Bench) -> Finding:
    """A second process cannot measure on the device while this one does."""
    if bench.placement.gpus:
        return _not_here("checked on the CPU only")
    with DeviceLock(bench.placement, "verify") as lock:
        lock.acquire()  # held already by the command itself in a whole run
        ended = subprocess.run([sys.executable, "-c", _ACQUIRE], timeout=_LOCK_SECONDS, check=False).returncode
    text = "a second measurement waits for the first" if ended == 3 else "two measurements would run at once"
    return ok("", text) if ended == 3 else problem("", text, _REMEDY)


def _no_device_memory(bench: Bench) -> Finding | None:
    if bench.placement.gpus or bench.backend.limits_cpu:
        return None
    return _not_here(f"Keras on {bench.backend.name} has no memory of its own on a CPU")


def _limit(bench: Bench) -> int:
    gpu = bench.placement.device
    return 1024 * MIB if gpu is None else min(4096 * MIB, gpu.free_bytes // 2)


def _outcome(measured: Measurement, expected: Outcome, what: str) -> Finding:
    if measured.outcome is expected:
        return ok("", f"recognised: {what}")
    return problem("", f"{measured.outcome.value} instead of {expected.value}: {what}", _REMEDY)


def _not_here(why: str) -> Finding:
    return warning("", f"not shown: {why}", "Nothing to do.")


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    "input rate": _input_rate,
    "step rate": _step_rate,
    "A/A": _same_twice,
    "host memory": _host_memory,
    "queue": _queue_memory,
    "device memory": _device_memory,
    "device OOM": _device_oom,
    "host OOM": _host_oom,
    "hang": _hang,
    "kill": _kill,
    "two at once": _turns,
}
