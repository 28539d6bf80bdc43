"""The trial server and the driver's connection to it: JSON over a socket, with the descriptors of a trial's pipe and log.

The server is a child of the driver: it imports the backend once, runs none of its operations, and forks trials. In plain
mode, it imports nothing and starts a new interpreter for each trial. In both modes, it reaps its children. When the driver
ends, the server kills all its own descendants. If the driver died, it also removes the driver's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import psutil

from autofit.errors import AutofitError, TrialProcessError
from autofit.records.units import how_it_ended
from autofit.trial.folder import TuneFolder
from autofit.trial.outcome import read_log
from autofit.trial.watcher import Pauses, end_tree
from autofit.trial.wire import READ_BYTES, TASKS, Task, TrialPipe
from autofit.trial.worker import main
from autofit.trial.worker.job import user_traceback

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
_REQUEST_BYTES = 64 * 1024  # more than any request, which contains the name of a file
_REQUEST_DESCRIPTORS = 2  # the trial's pipe and its log
_WAKE_BYTES = 4096  # one byte per signal: more than arrive between two reads
_ORPHAN_CHECK_SECONDS = 0.5  # how long the server may outlive a driver whose socket another process holds open
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


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


def serve(mode: str, descriptor: str, folder: str) -> NoReturn:
    """Serve requests until the driver ends; `descriptor` is the number of the inherited socket to the driver."""
    server = _Server(mode, socket.socket(fileno=int(descriptor)), Path(folder))
    try:
        server.run()
    finally:
        server.end()
    os._exit(0)


class _Server:
    def __init__(self, mode: str, driver: socket.socket, folder: Path) -> None:
        self._mode, self._driver, self._folder = mode, driver, folder
        self._parent, self._removes_folder = os.getppid(), True
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if sys.platform == "linux":  # makes the orphans of trials children of this process
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        if self._mode == "fork":
            try:
                main.preload()
            except Exception as error:
                self._removes_folder = False
                self._send(failed=str(error) if isinstance(error, AutofitError) else user_traceback(error))
                return
        self._send(ready=True)
        while os.getppid() == self._parent:
            readable, _, _ = select.select([self._driver.fileno(), self._wake], [], [], _ORPHAN_CHECK_SECONDS)
            if self._wake in readable:
                os.read(self._wake, _WAKE_BYTES)
            self._reap()
            if self._driver.fileno() in readable:
                request, descriptors, _, _ = socket.recv_fds(self._driver, _REQUEST_BYTES, _REQUEST_DESCRIPTORS)
                if not request:
                    return
                fields = json.loads(request)
                if "stop" in fields:
                    self._removes_folder = False
                    return
                start = self._fork if self._mode == "fork" else self._spawn
                self._send(pid=start(fields["spec"], *descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)

    def end(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if self._removes_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fork(self, spec: str, channel: int, log: int) -> int:
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # the child has already done it, or has ended
                os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            main.die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._driver.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            main.leave(main.play(self._folder, spec, channel))
        except BaseException:
            traceback.print_exc()  # to the log of the trial
        finally:
            os._exit(os.EX_SOFTWARE)  # reached only if the lines above fail

    def _spawn(self, spec: str, channel: int, log: int) -> int:
        call = "from autofit.trial.worker.main import run_plain; run_plain(*sys.argv[1:])"
        program = f"import sys; sys.path[:] = {sys.path!r}; {call}"
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(self._folder), spec, str(channel)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[channel],
            start_new_session=True,
        )
        process.returncode = 0  # `_reap` waits for it by pid, so Popen must not
        return process.pid

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # no child is left
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._send(exited=ended[0], exit_code=os.waitstatus_to_exitcode(ended[1]))

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the driver has ended, which the loop notices
            self._driver.sendall(json.dumps(message).encode() + b"\n")
