"""Run each trial in its own process: start it, read its messages, watch it, and classify how it
ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

from autofit import backends
from autofit.backends.protocol import require_code
from autofit.errors import TrialProcessError, UsageError
from autofit.machine import gpus, host
from autofit.records import cuda_memory
from autofit.records.description import Description
from autofit.records.machine import ON_CPU, Device, Placement
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Measurement, TrialSpec
from autofit.records.units import format_bytes
from autofit.trial.folder import Preload, TuneFolder
from autofit.trial.outcome import TrialEnd, cap_log, classify, read_log
from autofit.trial.server import ServerConnection, ServerLostError
from autofit.trial.watcher import Watcher, hang_seconds
from autofit.trial.wire import Task, TrialPipe
from autofit.trial.worker.job import saved_user_error
from autofit.workload.workload import Workload

# longest wait until the server reports that a killed trial has ended
_SERVER_SECONDS = 5.0
# limit for the memory estimate after the description: XLA may compile for minutes
_ESTIMATE_SECONDS = 60.0
# longest wait for memory that other processes hold, or that a trial has not yet released
_GPU_SECONDS = 60.0
_GPU_POLL_SECONDS = 0.1


# is called with each phase of a trial when it begins
OnPhase = Callable[[Phase], None]


def ignore(phase: Phase) -> None:
    """Do nothing with a phase."""


class Launcher(Protocol):
    """Runs trials; tests use an implementation that computes measurements from formulas."""

    def run(
        self, spec: TrialSpec, on_phase: OnPhase = ignore
    ) -> Measurement | Description:
        """Run one trial to its end.

        Return a description if the trial's role is to describe and it succeeds, otherwise a
        measurement. Raise `UsageError` if the user's functions return something that autofit does
        not support.
        """


class ProcessLauncher:
    """Runs each trial in its own process: a "fork" of a warm server, or a "plain" new interpreter.

    "auto" means "fork" on Linux, and "plain" on other systems, where forking is unsafe. What is
    compiled stays in the folder `compiled`, if one is given.
    """

    def __init__(
        self,
        workload: Workload,
        placement: Placement = ON_CPU,
        launch: str = "auto",
        compiled: Path | None = None,
    ) -> None:
        self._launch = launch
        self._placement = placement
        self._backend = backends.named(workload.backend)
        self._workload = workload
        self._folder = TuneFolder(compiled)
        self._driver = contextlib.ExitStack()
        # keeps the GPU's driver awake, so that no trial waits for it
        if placement.gpus:
            self._driver.enter_context(gpus.keep_nvml_open())
        self._server: ServerConnection | None = None
        self._preload: Preload | None = None  # that of the server
        self._trial_count = 0
        # of trials that finished: the longest in seconds, and the batch size
        self._pauses: list[tuple[float, int]] = []

    def __enter__(self) -> ProcessLauncher:
        """Start the server; it loads the backend in the background."""
        # `warm` tries again, and raises what is wrong
        with contextlib.suppress(TrialProcessError):
            self._server = self._new_server()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes and remove the folder, also if Ctrl-C is pressed again meanwhile."""
        with deferred_interrupts():
            # each of which runs, the last one first
            with contextlib.ExitStack() as steps:
                steps.callback(self._folder.remove)
                steps.callback(self._driver.close)
                if self._server is not None:
                    steps.callback(self._server.end)
            # last: if a step fails, the guard does the rest
            if self._server is not None:
                self._server.dismiss_guard()
                self._server = None

    def change(self, workload: Workload) -> None:
        """Switch to another workload; the server stays warm."""
        self._folder.clear()
        self._workload = workload
        self._pauses = []
        if self._server is not None and self._server.is_ready:
            workload.save(self._folder.path)

    def warm(self) -> ServerConnection:
        """Start the server if needed and wait until it is ready; `run` also does this."""
        if self._server is None:
            self._server = self._new_server()
        if not self._server.is_ready:
            try:
                self._workload.save(self._folder.path)
                self._server.wait_until_ready()
            except BaseException:
                self._stop_server()
                raise
        return self._server

    def _new_server(self) -> ServerConnection:
        noted = Preload.load(self._folder.path)
        self._preload = noted
        environment = dict(os.environ)
        if noted is not None:
            environment |= noted.environment
        environment |= self._backend.environment(self._placement, self._folder.compiled)
        environment["TMPDIR"] = str(self._folder.temporary)
        mode = self._launch
        if mode == "auto":
            mode = "fork" if sys.platform == "linux" else "plain"
        # a script's trials are forks once its first run has ended, if that is safe
        if self._workload.script and not (noted and noted.is_safe):
            mode = "plain"
        return ServerConnection(mode, self._folder, environment)

    def run(
        self, spec: TrialSpec, on_phase: OnPhase = ignore
    ) -> Measurement | Description:
        # a script's first run notes what forks need, which a new server has then
        if Preload.load(self._folder.path) != self._preload:
            self._stop_server()
        if self._server is None or not self._server.is_ready:
            on_phase(Phase.STARTING_SERVER)
        self.warm()
        for gpu in self._placement.gpus:
            wait_for_room(gpu, spec.limits.device_bytes or 0, on_phase)
        end = self._run_process(spec, on_phase)
        failure = end.messages.failure
        if failure is not None and failure.kind is FailureKind.USAGE:
            raise UsageError(failure.reason, key=failure.key)
        measurement = classify(
            end, spec.limits, self._backend, on_cpu=not self._placement.gpus
        )
        # a trial that has finished shows that the backend was built for the GPU
        has_failed = measurement.outcome in (Outcome.ERROR, Outcome.CRASHED)
        if has_failed and self._placement.device is not None and not self._pauses:
            reason = measurement.traceback or measurement.evidence.reason
            require_code(self._backend, self._placement.device, end.log, reason)
        description = end.messages.described(measurement.evidence.reason)
        if description is None:
            return measurement
        return replace(description, process_bytes=end.readings.peak_bytes)

    def _run_process(self, spec: TrialSpec, on_phase: OnPhase) -> TrialEnd:
        """Run the process of a trial, and return all that shows how it ended."""
        started = time.monotonic()
        started_at = time.time()
        kills_before = host.oom_kills()
        self._trial_count += 1
        log_path = self._folder.path / f"trial-{self._trial_count}.log"
        task = Task(spec, self._placement)
        server = self.warm()
        try:
            pipe = server.start(task, log_path)
        except ServerLostError:  # it was killed after the last trial
            self._stop_server()
            server = self.warm()
            pipe = server.start(task, log_path)
        batch_size = spec.config.batch_size or 1
        watcher = Watcher(
            server.pid,
            spec.limits.host_bytes,
            spec.deadline_seconds,
            self._placement.gpus,
            hang_seconds(self._pauses, batch_size),
        )
        exit_code = None
        try:
            exit_code = _wait_for_exit(
                server,
                pipe,
                watcher,
                log_path,
                on_phase,
                estimates_all=spec.compile_all,
            )
            watcher.read_shared_memory()
        except ServerLostError:
            self._stop_server()
        finally:
            watcher.end(pipe.pid)
        for phase in pipe.read():
            on_phase(phase)
        messages = pipe.messages
        if messages.description is not None or messages.measurement is not None:
            self._pauses.append((watcher.pauses.longest, batch_size))
        if messages.failure is None and watcher.breach:
            # the user's code may have failed before the trial hung
            messages = replace(messages, failure=saved_user_error(self._folder.path))
        return TrialEnd(
            exit_code=exit_code,
            messages=messages,
            readings=watcher.readings(),
            started_at=started_at,
            seconds=time.monotonic() - started,
            kernel_oom_kills=max(0, host.oom_kills() - kills_before),
            log=read_log(log_path),
        )

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server.dismiss_guard()
            self._server = None


def _wait_for_exit(
    server: ServerConnection,
    pipe: TrialPipe,
    watcher: Watcher,
    log_path: Path,
    on_phase: OnPhase,
    *,
    estimates_all: bool,
) -> int:
    """Return the exit status of a trial; end the trial first if it breaks a bound.

    Raise `ServerLostError` if the server has ended, or does not answer.
    """
    while True:
        # for a message of the server or the trial, or until the next reading is due
        sources = [server.connection]
        if pipe.is_open:
            sources.append(pipe.receiving)
        wait(sources, watcher.rest_seconds)
        phases = pipe.read()
        watcher.reserved_bytes = pipe.messages.reserved_bytes or 0
        # only the memory estimate is still missing then, unless it is the purpose of the trial
        if pipe.messages.description is not None and not estimates_all:
            watcher.shorten(_ESTIMATE_SECONDS)
        exit_code = server.exit_code(pipe.pid)
        if exit_code is not None:
            # on a busy machine a trial may have ended before the driver reads what it did
            for phase in phases:
                on_phase(phase)
            return exit_code
        cap_log(log_path)
        if watcher.poll() is not None:
            watcher.end(pipe.pid)
            exit_code = server.exit_code(pipe.pid, _SERVER_SECONDS)
            if exit_code is None:
                raise ServerLostError(server.pid)
            return exit_code
        # several if the driver was slower than the trial
        for phase in phases:
            watcher.enter(phase)
            on_phase(phase)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let Ctrl-C take effect only after the block, which must be short."""
    handler = signal.getsignal(signal.SIGINT)
    # other threads get no Ctrl-C, and a handler that was not set in Python cannot be put back
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    pressed = []
    signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def wait_for_room(device: Device, limit_bytes: int, on_phase: OnPhase) -> None:
    """Wait while other processes hold memory that was free when the limit was set.

    `device` is the GPU as it was then.
    """
    # an OOM that other processes cause would say nothing about a config
    wanted_bytes = min(
        limit_bytes, device.free_bytes - cuda_memory.OTHER_CONTEXTS_BYTES
    )
    waited_seconds = 0.0
    while True:
        used_bytes = gpus.used_bytes(device, ())[0]
        if used_bytes is None or device.total_bytes - used_bytes >= wanted_bytes:
            return
        if not waited_seconds:
            on_phase(Phase.WAITING_FOR_GPU)
        if waited_seconds > _GPU_SECONDS:
            free = format_bytes(device.total_bytes - used_bytes)
            wanted = format_bytes(wanted_bytes)
            holders = gpus.holders(device) or "the driver does not name them"
            raise TrialProcessError(
                f"other processes took memory of {device.name} during the tune: {free} is free, "
                f"{wanted} is needed ({holders}). "
                "End those processes and run this again; finished trials are kept"
            )
        time.sleep(_GPU_POLL_SECONDS)
        waited_seconds += _GPU_POLL_SECONDS
