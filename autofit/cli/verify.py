"""`autofit verify`: measure what is known in trials like those of a tune, and print by how much the
figures differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import typer

from autofit import backends
from autofit.api import session
from autofit.cli.common import Json, reporting_errors
from autofit.cli.doctor import Finding, ok, print_findings, problem, warning
from autofit.cli.known_workloads import BATCH, known
from autofit.machine import host
from autofit.machine.device_lock import DeviceLock
from autofit.records.events import Activity
from autofit.records.knobs import FitConfig
from autofit.records.machine import Device
from autofit.records.states import Outcome, Role
from autofit.records.trial import Limits, Measurement, TrialSpec
from autofit.records.units import format_bytes, format_seconds
from autofit.trial.launcher import ProcessLauncher
from autofit.tuning.settings import TuneSettings
from autofit.workload.workload import Workload

_MIB = 2**20
_REPORT = (
    "Do not rely on figures from this machine; please report this with the output of autofit "
    "doctor --json."
)
_END_IT = "End that work, then run autofit verify again."
_DEADLINE_SECONDS = 90.0
_FAULT_SECONDS = 30.0
_PLAIN = FitConfig(BATCH, 1, 10, False)
_FAULTY = FitConfig(BATCH + 1, 1, 10, False)
# relative
_RATE_ERROR = 0.05
_MEMORY_ERROR = 0.08
_BATCH_SECONDS = 0.02
_WORKERS = 2
_HELD_BYTES = 384 * _MIB
# counted at most beyond what is asked for: XLA's allocator splits off no smaller rest
_UNSPLIT_BYTES = 128 * _MIB
# above what a trial takes, for the host's limit
_ROOM_BYTES = 512 * _MIB


class _WrongError(Exception):
    """A figure differs from what is known by more than a tune could bear."""


@dataclass(frozen=True)
class Bench:
    """Runs trials of known workloads on one device."""

    launcher: ProcessLauncher
    limits: Limits
    gpu: Device | None

    def run(
        self,
        workload: Workload | None,
        config: FitConfig = _PLAIN,
        expected: Outcome = Outcome.OK,
        **spec: Any,
    ) -> Measurement:
        """Run a trial of a workload, None for the one before.

        Raise _WrongError unless its outcome is the expected one.
        """
        if workload is not None:
            self.launcher.change(workload)
        fields = {"limits": self.limits, "deadline_seconds": _DEADLINE_SECONDS, **spec}
        asked = TrialSpec(Role.MEASURE, config, **{"measure_seconds": 1.5, **fields})
        measured = self.launcher.run(asked)
        assert isinstance(measured, Measurement), (
            "only a describing trial returns a description"
        )
        if measured.outcome is not expected:
            raise _WrongError(
                f"{measured.outcome.value} instead of {expected.value}: {measured.evidence.reason}"
            )
        return measured


def verify(as_json: Json = False) -> None:
    """Measure what is known on this machine, and print by how much the figures of autofit differ
    from it.

    Takes a minute: a pipeline of known rate, known allocations, forced out-of-memory errors, and a
    hang.

    Exit codes: 0 no figure is wrong; 1 at least one is wrong; 3 nothing can be said, because other
    work uses the cores.
    """
    with reporting_errors():
        findings = print_findings(run(), as_json=as_json)
        if any(finding.remedy == _END_IT for finding in findings):
            # neither 0 nor 1, which say something of the figures
            raise typer.Exit(3)


def run() -> Iterator[Finding | Activity]:
    """Measure each figure; yield an Activity before it."""
    machine, placement = session.detect(TuneSettings())
    with DeviceLock(placement, "autofit verify") as lock:
        if not lock.acquire():
            raise lock.busy_error()
        # before our own work begins; these trials sleep most of the time, so that a few idle cores
        # are enough for them
        if work := host.other_work(beside_idle_cores=False):
            yield warning("load", f"cannot measure now: {work}", _END_IT)
            return
        gpu = placement.device
        limits = Limits(gpu.free_bytes // 2 if gpu else None, machine.available_bytes)
        with ProcessLauncher(known(), placement) as launcher:
            for figure in CHECKS:
                yield Activity(f"measuring: {figure}")
                yield measure(figure, Bench(launcher, limits, gpu))


def measure(figure: str, bench: Bench) -> Finding:
    """Measure a figure; it is not called wrong while other work uses the machine."""
    try:
        return ok(figure, CHECKS[figure](bench))
    except _WrongError as error:
        if work := host.other_work():
            return warning(figure, f"{error}; {work}", _END_IT)
        return problem(figure, str(error), _REPORT)


def _compare(found: float | None, expected: float, most_error: float, what: str) -> str:
    """Compare a figure with what is known; `most_error` is relative."""
    error = (found or 0.0) / expected - 1
    text = f"{error:+.1%}: {what}"
    if abs(error) > most_error:
        raise _WrongError(text)
    return text


def _input_rate(bench: Bench) -> str:
    rate = _WORKERS * BATCH / _BATCH_SECONDS
    trial = bench.run(
        known({"seconds": _BATCH_SECONDS}), replace(_PLAIN, workers=_WORKERS)
    )
    alone = _compare(
        trial.input_samples_per_second, rate, _RATE_ERROR, "without a model"
    )
    what = f"fit on {_WORKERS} threads that sleep {1000 * _BATCH_SECONDS:g} ms for a batch; {alone}"
    return _compare(trial.samples_per_second, rate, _RATE_ERROR, what)


def _host_memory(bench: Bench) -> str:
    """An array that is shared with two worker processes counts once."""
    has_processes = bench.gpu is None or not backends.current().fork_problem_on_gpu
    config = FitConfig(BATCH, 2, 2, use_multiprocessing=has_processes)
    without, with_array = (
        bench.run(known({"held_bytes": size, "seconds": 0.002}), config).host_peak_bytes
        or 0
        for size in (0, _HELD_BYTES)
    )
    what = f"an array of {format_bytes(_HELD_BYTES)}"
    if has_processes:
        what += " shared with two worker processes"
    return _compare(with_array - without, _HELD_BYTES, _MEMORY_ERROR, what)


def _device_memory(bench: Bench) -> str:
    backend = backends.current()
    if bench.gpu is None and not backend.limits_cpu:
        return f"not shown: Keras on {backend.name} has no memory of its own on a CPU"
    device_bytes = (
        1024 * _MIB
        if bench.gpu is None
        else min(4096 * _MIB, bench.gpu.free_bytes // 2)
    )
    limits = replace(bench.limits, device_bytes=device_bytes)
    weight_bytes = device_bytes // 4
    too_many_bytes = 4 * device_bytes
    without, with_weights = (
        bench.run(known(model={"weight_bytes": size}), limits=limits).device_peak_bytes
        or 0
        for size in (4, weight_bytes)
    )
    too_large = known(model={"weight_bytes": too_many_bytes})
    bench.run(too_large, expected=Outcome.DEVICE_OOM, limits=limits)
    what = (
        f"weights of {format_bytes(weight_bytes)}; an OOM of {format_bytes(too_many_bytes)} is "
        "recognised"
    )
    most_error = _MEMORY_ERROR
    if bench.gpu:
        most_error += _UNSPLIT_BYTES / weight_bytes
    return _compare(with_weights - without, weight_bytes, most_error, what)


def _host_oom(bench: Bench) -> str:
    limit = (bench.run(known({"fault": "leak"})).host_peak_bytes or 0) + _ROOM_BYTES
    limits = replace(bench.limits, host_bytes=limit)
    trial = bench.run(None, _FAULTY, Outcome.HOST_OOM, limits=limits)
    reached = trial.evidence.last_host_bytes or 0
    text = (
        f"recognised at {format_bytes(reached)}: data that grows beyond a limit of "
        f"{format_bytes(limit)}"
    )
    if reached > 1.5 * limit:
        raise _WrongError(text)
    return text


def _hang(bench: Bench) -> str:
    # the longest pause of a trial that finishes says what a hang is
    bench.run(known({"fault": "hang"}))
    trial = bench.run(None, _FAULTY, Outcome.TIMEOUT, deadline_seconds=_FAULT_SECONDS)
    if not trial.evidence.hung:
        raise _WrongError(
            f"ended after {format_seconds(trial.seconds)}, but not as a hang"
        )
    return f"recognised: data that waits for ever, ended after {format_seconds(trial.seconds)}"


CHECKS: dict[str, Callable[[Bench], str]] = {
    "input rate": _input_rate,
    "host memory": _host_memory,
    "device memory": _device_memory,
    "host OOM": _host_oom,
    "hang": _hang,
}
