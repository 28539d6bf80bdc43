"""The trial server, a child of the driver: it imports the backend once, runs none of its operations, and forks trials.

In plain mode, the server imports nothing and starts a new interpreter for each trial. In both modes, it reaps its children.
When the driver ends, the server kills all its own descendants. If the driver died, it also removes the driver's folder.
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
import traceback
from pathlib import Path
from typing import Any, NoReturn

import psutil

from autofit.errors import AutofitError
from autofit.trial.worker import main
from autofit.trial.worker.job import user_traceback

_REQUEST_BYTES = 64 * 1024  # more than any request, which contains the name of a file
_REQUEST_DESCRIPTORS = 2  # the trial's pipe and its log
_WAKE_BYTES = 4096  # one byte per signal: more than arrive between two reads
_ORPHAN_CHECK_SECONDS = 0.5  # how long the server may outlive a driver whose socket another process holds open
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


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
