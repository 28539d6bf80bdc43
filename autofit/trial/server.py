"""The trial server and the driver's connection to it.

The server is a child of the driver: it imports the backend once, runs none of its operations, and
forks trials. In plain mode, it imports nothing, and each trial is a new interpreter. In both modes,
it reaps its children. When the driver ends, the server kills all its own descendants. If the driver
died, it also removes the driver's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from autofit.errors import AutofitError, TrialProcessError
from autofit.records.units import how_it_ended
from autofit.trial.folder import Preload, TuneFolder, explained_errors
from autofit.trial.outcome import read_log
from autofit.trial.watcher import end_below
from autofit.trial.wire import TASKS, Task, TrialPipe
from autofit.trial.worker import main, task
from autofit.trial.worker.job import user_traceback

# longest import of the backend: from a cold disk, it takes half a minute
_START_SECONDS = 120.0
# longest start of a process: a fork of a large server on a busy machine takes a second
_ANSWER_SECONDS = 30.0
# longest wait for the server to end its processes; then it is killed with them
_STOP_SECONDS = 5.0
# between two looks of the server for trials that have ended, and for a driver that has died
_POLL_SECONDS = 0.05
_ROOT = str(Path(__file__).parents[2])
# The path omits the working directory, whose files may shadow modules of the standard library.
_PROGRAM = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]; "
    "from autofit.trial.server import serve; serve(*sys.argv[1:])"
)
# When the driver dies, the guard's input ends. The guard then kills a server that cannot end by
# itself because it is importing or suspended. If the command of this pid does not name the folder,
# the pid belongs to another program.
_GUARD = """
read -r line
sleep 1
if grep -qsF "$2" "/proc/$1/cmdline" || ps -o args= -p "$1" | grep -qF "$2"; then kill -9 "$1"; fi
rm -rf "$2"
"""
# of linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


class ServerLostError(TrialProcessError):
    """The trial server has ended or does not answer."""

    def __init__(self, pid: int) -> None:
        problem = f"the trial server ended or does not answer (pid {pid})"
        super().__init__(f"{problem}. Run this again; finished trials are kept")


class ServerConnection:
    """Starts a trial server in a mode, "fork" or "plain", and exchanges messages with it."""

    def __init__(
        self, mode: str, folder: TuneFolder, environment: dict[str, str]
    ) -> None:
        with explained_errors(folder.path):
            log = folder.server_log.open("wb")
        self._folder = folder
        self.is_ready = False
        self.connection, theirs = multiprocessing.Pipe()
        with theirs, log:
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        _PROGRAM,
                        mode,
                        str(theirs.fileno()),
                        str(folder.path),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise TrialProcessError(
                    f"no process can be started with {sys.executable!r}: {error.strerror}"
                ) from None
        self.pid = self._process.pid
        self._guard: subprocess.Popen[bytes] | None = None
        # without a shell, only the server itself notices that the driver died
        with contextlib.suppress(OSError):
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", str(self.pid), str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the backend is imported; raise `TrialProcessError` if that fails."""
        message = {"failed": "its process did not answer"}
        try:
            message = self.receive(_START_SECONDS) or message
        except ServerLostError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                message["failed"] = (
                    f"its process {how_it_ended(self._process.wait(_STOP_SECONDS))}"
                )
            message["failed"] += f"\n\n{read_log(self._folder.server_log)}"
        self.is_ready = "ready" in message
        if not self.is_ready:
            problem = message["failed"].strip()
            raise TrialProcessError(
                f"the Keras backend could not be started (autofit doctor checks it):\n\n{problem}"
            )

    def start(self, task: Task, log_path: Path) -> TrialPipe:
        """Save a task next to its log, and request a process for it.

        Raise `ServerLostError` if none is started.
        """
        with explained_errors(self._folder.path):
            log_path.with_suffix(".json").write_bytes(TASKS.dump_json(task))
            log_path.touch()
        receiving, sending = multiprocessing.Pipe(duplex=False)
        with sending:
            try:
                self.connection.send(log_path.stem)
                # From Python 3.14 on, `multiprocessing.reduction` waits for an acknowledgement, and
                # may read a message about a trial that has just ended in its place. The answer
                # with the pid acknowledges here.
                with _socket_of(self.connection) as stream:
                    socket.send_fds(stream, [b"0"], [sending.fileno()])
            except OSError:  # the server was killed
                raise ServerLostError(self.pid) from None
            while message := self.receive(_ANSWER_SECONDS):
                if "pid" in message:  # the exit of an earlier trial may come first
                    return TrialPipe(message["pid"], receiving)
        raise ServerLostError(self.pid)

    def exit_code(self, pid: int, wait_seconds: float = 0.0) -> int | None:
        """Return the exit status of a trial, -N for signal N; None if it does not end in time."""
        while message := self.receive(wait_seconds):
            if message.get("exited") == pid:
                return int(message["exit_code"])
        return None

    def receive(self, wait_seconds: float) -> dict[str, Any]:
        """Return the next message, {} if none arrives in time; raise `ServerLostError` if the
        server has ended.
        """
        message: dict[str, Any] = {}
        try:
            if self.connection.poll(wait_seconds):
                message = self.connection.recv()
        except (EOFError, OSError):
            raise ServerLostError(self.pid) from None
        return message

    def end(self) -> None:
        """End the server and all its descendants; keep the folder, and the guard."""
        with contextlib.suppress(OSError):  # the server is gone
            self.connection.send(None)
        self.connection.close()
        try:
            self._process.wait(timeout=_STOP_SECONDS if self.is_ready else 0)
        except subprocess.TimeoutExpired:
            end_below(psutil.Process(self.pid))
            self._process.kill()
            self._process.wait()

    def dismiss_guard(self) -> None:
        """End the guard, which would remove the folder."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()


def serve(mode: str, descriptor: str, folder: str) -> NoReturn:
    """Serve requests until the driver ends; `descriptor` is the number of the inherited end of the
    connection.
    """
    driver = Connection(int(descriptor))
    parent = os.getppid()
    name = ""
    try:
        if mode == "fork":
            noted = Preload.load(Path(folder))
            main.preload([] if noted is None else noted.packages)
    except Exception as error:
        is_ours = isinstance(error, AutofitError)
        driver.send({"failed": str(error) if is_ours else user_traceback(error)})
        os._exit(1)
    # makes the orphans of trials children of this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # until the driver has ended
    with contextlib.suppress(EOFError, ConnectionError):
        driver.send({"ready": True})
        # the connection of a driver that has ended stays open while a process that the driver
        # forked holds it
        while os.getppid() == parent and name is not None:
            if driver.poll(_POLL_SECONDS) and (name := driver.recv()) is not None:
                driver.send({"pid": _start_trial(mode, Path(folder), name, driver)})
            _reap(driver)
    end_below(psutil.Process())
    if name is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _reap(driver: Connection) -> None:
    """Tell the driver of the trials that have ended."""
    # until no child is left
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            driver.send({"exited": pid, "exit_code": os.waitstatus_to_exitcode(status)})


def _socket_of(connection: Connection) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _start_trial(mode: str, folder: Path, name: str, driver: Connection) -> int:
    with _socket_of(driver) as stream:
        descriptors = socket.recv_fds(stream, 1, 1)[1]
    if not descriptors:
        raise EOFError("the driver has ended")
    channel = descriptors[0]
    pid = os.fork()
    if pid:
        os.close(channel)
        return pid
    try:
        os.setpgid(0, 0)
        main.die_with_parent()
        driver.close()
        log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if mode == "plain":
            call = "from autofit.trial.worker.main import run_plain; run_plain(*sys.argv[1:])"
            program = f"import sys; sys.path[:] = {sys.path!r}; {call}"
            os.set_inheritable(channel, True)
            arguments = [str(folder), f"{name}.json", str(channel)]
            os.execv(sys.executable, [sys.executable, "-c", program, *arguments])
        task.leave(main.play(folder, f"{name}.json", channel))
    except BaseException:
        # to the log of the trial
        traceback.print_exc()
    finally:
        # reached only if the lines above fail
        os._exit(os.EX_SOFTWARE)
