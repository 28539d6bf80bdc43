"""The driver's connection to the trial server: start the server, request processes from it, and stop it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil

from autofit.errors import TrialProcessError
from autofit.records.units import how_it_ended
from autofit.trial.folder import TuneFolder
from autofit.trial.outcome import read_log
from autofit.trial.watcher import Pauses, end_tree
from autofit.trial.wire import READ_BYTES, TASKS, Task, TrialPipe

SERVER_LOG = "server.log"
_START_SECONDS = 120.0  # longest import of the backend: from a cold disk, it takes half a minute
_STILL_SECONDS = 30.0  # a starting server that is idle for this long is suspended or waits forever
_STOP_SECONDS = 5.0  # longest wait for the server to end its processes; then it is killed with them
_ROOT = str(Path(__file__).parents[2])
_ANSWER_SECONDS = 30.0  # longest start of a process: a fork of a large server on a busy machine takes a second
# The path omits the working directory, whose files may shadow modules of the standard library.
_PROGRAM = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]; "
    "from autofit.trial.server import serve; serve(*sys.argv[1:])"
)
# When the driver dies, the guard's input ends. The guard then kills a server that cannot end by itself because it is
# importing or suspended. If the command of this pid does not name the folder, the pid belongs to another program.
_GUARD = """
read -r line
sleep 1
if grep -qsF "$2" "/proc/$1/cmdline" || ps -o args= -p "$1" | grep -qF "$2"; then kill -9 "$1"; fi
rm -rf "$2"
"""


class ServerConnection:
    """Starts a trial server in one of the modes "fork" and "plain", and exchanges messages with it."""

    def __init__(self, mode: str, folder: TuneFolder, environment: dict[str, str]) -> None:
        with folder.explained_errors():
            log = os.open(folder.path / SERVER_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._folder = folder
        self._socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, mode, str(theirs.fileno()), str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise TrialProcessError(f"no process can be started with {sys.executable!r}: {error.strerror}") from None
        finally:
            theirs.close()
            os.close(log)
        self.pid, self.descriptor = self._process.pid, self._socket.fileno()  # messages arrive on the descriptor
        self._rest, self._inbox = b"", list[dict[str, Any]]()
        self.lost = self.is_ready = False
        self._guard: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # without a shell, only the server itself notices that the driver died
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", str(self.pid), str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the server has imported the backend; raise `TrialProcessError` if that fails."""
        pauses, server = Pauses(), psutil.Process(self.pid)
        deadline = time.monotonic() + _START_SECONDS
        message: dict[str, Any] = {}
        while not message and not self.lost and (now := time.monotonic()) < deadline:
            if pauses.read([server], now) >= _STILL_SECONDS:
                break
            message = next(self.receive(wait_seconds=1), {})
        self.is_ready = "ready" in message
        if not self.is_ready:
            problem = message.get("failed") or f"{self._silence()}\n\n{read_log(self._folder.path / SERVER_LOG)}"
            raise TrialProcessError(
                f"the Keras backend could not be started (autofit doctor checks it):\n\n{problem.strip()}"
            )

    def _silence(self) -> str:
        if not self.lost:
            return "its process did not answer"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"its process {how_it_ended(self._process.wait(timeout=1))}"
        return "its process closed its connection"

    def start(self, task: Task, log_path: Path) -> TrialPipe:
        """Save a task next to its log, and request a process for it; raise `TrialProcessError` if none is started."""
        task_path = log_path.with_suffix(".json")
        with self._folder.explained_errors():
            task_path.write_bytes(TASKS.dump_json(task))
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        read_end, write_end = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps({"spec": task_path.name}).encode()], [write_end, log])
        except OSError:  # the server was killed
            self.lost = True
        finally:
            os.close(write_end)
            os.close(log)
        os.set_blocking(read_end, False)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self.lost and time.monotonic() < deadline:
            for message in self.receive(wait_seconds=1):
                if "pid" in message:
                    return TrialPipe(message["pid"], read_end)
        os.close(read_end)
        problem = "ended before it started a process" if self.lost else "does not answer"
        self.lost = True
        raise TrialProcessError(f"the trial server {problem} (pid {self.pid}). Run this again; finished trials are kept")

    def receive(self, wait_seconds: float) -> Generator[dict[str, Any], None, None]:
        """Yield the messages that have arrived; set `lost` if the server is gone."""
        if select.select([self._socket], [], [], wait_seconds)[0]:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:  # the server was killed before it read a request
                data = b""
            self.lost = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._inbox += [json.loads(line) for line in lines]
        while self._inbox:
            yield self._inbox.pop(0)

    def stop(self) -> None:
        """End the server and all its descendants; keep the folder."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        with contextlib.suppress(OSError):  # the server is gone
            self._socket.send(json.dumps({"stop": True}).encode())
        self._socket.close()
        try:
            self._process.wait(timeout=_STOP_SECONDS if self.is_ready else 0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                end_tree(self.pid, self.pid)
            self._process.wait()
