"""Get a process for each trial, listen to it, have it watched, and say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pydantic import TypeAdapter

from autofit import backends
from autofit.errors import TrialProcessError, UsageError
from autofit.machine import host
from autofit.records.machine import Device
from autofit.records.trial import Description, Measurement, TrialSpec
from autofit.trial.outcome import TrialEnd, classify, read_log
from autofit.trial.watcher import Watcher, end_tree
from autofit.workload.workload import Workload

LAUNCH_MODES = ("auto", "fork", "plain")
_TICK_SECONDS = 0.02  # at 2 GB/s a tree grows by 40 MB in it
_READ_BYTES = 64 * 1024
_SERVER_LOG = "server.log"
_DESCRIPTIONS = TypeAdapter(Description)
_START_SECONDS = 120.0  # for importing the backend; from a cold disk it takes half a minute


class Launcher(Protocol):
    """What the loop needs of the process wall; tests put a formula behind it."""

    def run(self, spec: TrialSpec) -> Generator[str, None, Measurement | Description]:
        """Run one trial; yields what it is doing.

        Returns a Measurement, or a Description where one was asked for and could be had.
        """

    def close(self) -> None:
        """End every process."""


class ProcessLauncher:
    """Runs each trial in a process of its own.

    Args:
        workload: the user's model and data; written to a folder of this launcher's when the first process is wanted.
        device: the accelerator, or None for the CPU.
        launch: "fork" (a fork of a warm server), "plain" (an interpreter of its own), or "auto": fork on Linux, plain
            where forking is unsafe.

    Raises:
        UsageError: `launch` is none of these.
    """

    def __init__(self, workload: Workload, device: Device | None, launch: str = "auto") -> None:
        if launch not in LAUNCH_MODES:
            raise UsageError(f"{launch!r} is not one of {', '.join(LAUNCH_MODES)}", key="launch")
        self._mode = ("fork" if sys.platform == "linux" else "plain") if launch == "auto" else launch
        self._device, self._backend, self._workload = device, backends.current(), workload
        self._folder = Path(tempfile.mkdtemp(prefix="autofit-"))
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._inbox: list[dict[str, Any]] = []
        self._rest = b""
        self._lost = False
        self._count = 0

    def __enter__(self) -> ProcessLauncher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def change(self, workload: Workload) -> None:
        """Run another workload from now on; the server stays warm.

        Raises:
            UsageError: the workload cannot be handed over.
        """
        for path in self._folder.iterdir():
            if path.name != _SERVER_LOG:
                path.unlink()
        self._workload = workload
        if self._server is not None:
            workload.save(self._folder)

    def warm(self) -> None:
        """Start the server and wait until it is ready (`run` does it when it must).

        Raises:
            TrialProcessError: the backend cannot be imported, or the server does not answer.
            UsageError: the workload cannot be handed over.
        """
        if self._server is None:
            self._start_server()

    def run(self, spec: TrialSpec) -> Generator[str, None, Measurement | Description]:
        """See `Launcher.run`.

        Raises:
            UsageError: the user's functions return something that autofit does not take.
            TrialProcessError: no process could be started.
        """
        if self._server is None:
            yield "starting the trial server"
            self.warm()
        assert self._server is not None
        server_pid, started, kills = self._server.pid, time.monotonic(), host.oom_kills()
        started_at = time.time()
        watcher = Watcher(server_pid, spec.limits.host_bytes, spec.deadline_seconds, self._device)
        trial = _Listener(*self._request(spec))
        stopped: str | None = None
        exit_code: int | None = None
        running = True
        try:
            while running:
                phase = trial.phase
                readable, _, _ = select.select([trial.pipe] if trial.open else [], [], [], _TICK_SECONDS)
                if readable:
                    trial.read()
                for message in self._receive(wait_seconds=0):
                    if message.get("exited") == trial.pid:
                        exit_code, running = message["exit_code"], False
                running = running and not self._lost
                stop = watcher.poll() if running and stopped is None else None
                if stop is not None:
                    stopped = stop.reason
                    end_tree(server_pid, trial.pid)
                if trial.phase is not None and trial.phase != phase:
                    watcher.enter(trial.phase)
                    yield trial.phase
        finally:
            end_tree(server_pid, trial.pid)
            trial.finish()
            if self._lost:
                self._stop_server()
        if trial.description is not None:
            description = _DESCRIPTIONS.validate_python(trial.description)
            return replace(description, process_bytes=watcher.peak_bytes)
        if trial.failure is not None and trial.failure["kind"] == "usage":
            raise UsageError(trial.failure["reason"], key=trial.failure["key"])
        ending = TrialEnd(
            exit_code=exit_code,
            phase=trial.phase,
            measurement=trial.measurement,
            failure=trial.failure,
            stopped=stopped,
            last_host_bytes=watcher.last_bytes,
            peak_host_bytes=watcher.peak_bytes,
            host_peak_bytes_by_phase=watcher.peak_by_phase,
            driver_peak_bytes=watcher.driver_peak_bytes,
            least_shared_memory_bytes=watcher.least_shared_memory_bytes if host.shared_memory()[0] else None,
            kernel_oom_kills=max(0, host.oom_kills() - kills),
            started_at=started_at,
            phase_seconds=watcher.seconds_by_phase,
            seconds=time.monotonic() - started,
            log=read_log(self._log_path()),
        )
        return classify(ending, spec.limits, self._backend, on_cpu=self._device is None)

    def close(self) -> None:
        """End the server and every trial below it, and remove the folder."""
        self._stop_server()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log_path(self) -> Path:
        return self._folder / f"trial-{self._count}.log"

    def _request(self, spec: TrialSpec) -> tuple[int, int]:
        """Ask the server for a process; returns its pid and the end of its pipe to read from."""
        assert self._socket is not None
        self._count += 1
        name = f"trial-{self._count}.json"
        device = asdict(self._device) if self._device else None
        (self._folder / name).write_text(json.dumps({**asdict(spec), "device": device}))
        read_end, write_end = os.pipe()
        log = os.open(self._log_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            socket.send_fds(self._socket, [json.dumps({"spec": name}).encode()], [write_end, log])
        except OSError as error:
            os.close(read_end)
            raise TrialProcessError(f"the trial server is gone: {error}") from None
        finally:
            os.close(write_end)
            os.close(log)
        os.set_blocking(read_end, False)
        while not self._lost:
            for message in self._receive(wait_seconds=1):
                if "pid" in message:
                    return message["pid"], read_end
        os.close(read_end)
        raise TrialProcessError("the trial server ended when it was asked for a process")

    def _start_server(self) -> None:
        self._workload.save(self._folder)
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        program = f"import sys; sys.path.append({root!r}); from autofit.trial.server import serve; serve(*sys.argv[1:])"
        environment = {**os.environ, **self._backend.environment(self._device)}
        log_path = self._folder / _SERVER_LOG
        with theirs, open(log_path, "wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-c", program, self._mode, str(theirs.fileno()), str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._socket, self._rest, self._lost = ours, b"", False
        message = next(iter(self._receive(wait_seconds=_START_SECONDS)), {})
        if "ready" not in message:
            told = message.get("failed") or read_log(log_path) or "it did not answer"
            self._stop_server()
            raise TrialProcessError(f"the Keras backend could not be started:\n\n{told.strip()}")

    def _stop_server(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            try:
                self._server.wait(timeout=5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    end_tree(self._server.pid, self._server.pid)
                self._server.wait()
            self._server = None

    def _receive(self, wait_seconds: float) -> Generator[dict[str, Any], None, None]:
        """The messages that have come from the server; notes when it is lost."""
        assert self._socket is not None
        if select.select([self._socket], [], [], wait_seconds)[0]:
            data = self._socket.recv(_READ_BYTES)
            self._lost = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._inbox += [json.loads(line) for line in lines]
        while self._inbox:
            yield self._inbox.pop(0)


class _Listener:
    """The driver's end of one trial's pipe, and what has come through it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe = pid, pipe
        self.phase: str | None = None
        self.description: dict[str, Any] | None = None
        self.measurement: dict[str, Any] | None = None
        self.failure: dict[str, Any] | None = None
        self.open = True
        self._rest = b""

    def read(self) -> bool:
        """Take in what is there; False when there is nothing more."""
        try:
            data = os.read(self.pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            for key, value in json.loads(line).items():
                setattr(self, key, value)
        self.open = bool(data)
        return self.open

    def finish(self) -> None:
        """Take in the rest and close."""
        while self.read():
            pass
        os.close(self.pipe)
