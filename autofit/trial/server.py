"""The trial server, a child of the driver: imports the backend once, runs no operation, forks one child per trial.

In plain mode it imports nothing and starts each trial as an interpreter of its own. Either way it reaps, and when the
driver goes, however it goes, it ends every process below it and removes the driver's folder.
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
from pathlib import Path
from typing import Any, NoReturn

import psutil

from autofit.errors import AutofitError
from autofit.trial.worker import main

_REQUEST_BYTES = 64 * 1024
_ORPHAN_CHECK_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def serve(mode: str, descriptor: str, folder: str) -> NoReturn:
    """Serve requests until the driver goes.

    Args:
        mode: "fork" or "plain".
        descriptor: number of the inherited socket to the driver.
        folder: the driver's folder for this tune, removed at the end.
    """
    server = _Server(mode, socket.socket(fileno=int(descriptor)), Path(folder))
    try:
        server.run()
    finally:
        server.end()
    os._exit(0)


class _Server:
    def __init__(self, mode: str, driver: socket.socket, folder: Path) -> None:
        self._mode, self._driver, self._folder = mode, driver, folder
        self._parent = os.getppid()
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if sys.platform == "linux":  # a trial's orphans become children of this process, so that they can be found
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        started = time.perf_counter()
        if self._mode == "fork":
            try:
                main.preload()
            except Exception as error:
                self._send(failed=str(error) if isinstance(error, AutofitError) else traceback.format_exc())
                return
        self._send(ready=time.perf_counter() - started)
        while os.getppid() == self._parent:
            readable, _, _ = select.select([self._driver.fileno(), self._wake], [], [], _ORPHAN_CHECK_SECONDS)
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            self._reap()
            if self._driver.fileno() in readable:
                request, descriptors, _, _ = socket.recv_fds(self._driver, _REQUEST_BYTES, 2)
                if not request:
                    return
                self._send(pid=self._start(json.loads(request)["spec"], *descriptors))

    def end(self) -> None:
        """End everything below this process, then remove the folder."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, spec: str, channel: int, log: int) -> int:
        pid = self._fork(spec, channel, log) if self._mode == "fork" else self._spawn(spec, channel, log)
        os.close(channel)
        os.close(log)
        return pid

    def _fork(self, spec: str, channel: int, log: int) -> int:
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # the child has done it already, or is gone
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
        finally:
            os._exit(70)  # only reached when the lines above failed

    def _spawn(self, spec: str, channel: int, log: int) -> int:
        call = "from autofit.trial.worker.main import run_plain; run_plain(sys.argv[1:])"
        program = f"import sys; sys.path[:] = {sys.path!r}; {call}"
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(self._folder), spec, str(channel)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[channel],
            start_new_session=True,
        )
        process.returncode = 0  # reaped below, by pid: Popen must not try
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send(exited=pid, exit_code=os.waitstatus_to_exitcode(status))

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the driver is gone: the loop will see it
            self._driver.sendall(json.dumps(message).encode() + b"\n")
