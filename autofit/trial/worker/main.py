"""The entry point of a trial's process: a fork of the warm server, or a plain subprocess."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from autofit import backends
from autofit.records.states import Phase
from autofit.trial.wire import TASKS
from autofit.trial.worker.job import USER_ERROR_FILE, DevicePeaks, TrialContext
from autofit.trial.worker.script import ScriptRun
from autofit.trial.worker.task import finish, leave, limit, work
from autofit.workload import workload
from autofit.workload.binding import bind_all, resolve_reference

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# number of the pipe, or above: where code closes all files and opens its own, none of them takes
# its place
_PIPE = 200


def preload(packages: Sequence[str]) -> None:
    """Load Keras, its backend, the modules of the trials, and packages that a script imports."""
    backends.current().preload()
    # a package that the script's first run imported may be imported otherwise, or not at all, here
    for package in packages:
        with contextlib.suppress(Exception):
            import_module(package)
    # loads Keras once for all forks
    import_module("autofit.trial.worker.describe")
    import_module("autofit.trial.worker.measure")
    gc.collect()
    # otherwise each collection in a fork visits all objects, which takes 0.2 s and copies their
    # pages
    gc.freeze()


def play(folder: Path, task_name: str, channel: int) -> int:
    """Do a task and return the exit status.

    A task on a script ends the process instead, inside the script's call of `fit`.
    """
    task = TASKS.validate_json((folder / task_name).read_bytes())
    peaks = DevicePeaks(backends.current(), task.placement)
    pipe = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, _PIPE)
    context = TrialContext(folder, task.spec, task.placement, pipe, peaks)
    (folder / USER_ERROR_FILE).unlink(missing_ok=True)  # of an earlier trial
    script = workload.script_in(folder)

    def do() -> None:
        if script is not None:
            ScriptRun(script, context).run()
            return
        limit(context)
        context.enter(Phase.LOADING)
        # not for a script: it is run from its first line, before Keras is imported, as in the
        # user's own run
        with peaks.backend.refusing_late_switches():
            loaded = workload.load(folder)
            named = bind_all(loaded, resolve_reference)  # imports the user's modules
        work(context, loaded, named)

    return finish(context, do)


def die_with_parent() -> None:
    """Make Linux kill this process when its parent dies; elsewhere, only the server kills it."""
    if sys.platform == "linux":
        parent = os.getppid()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run_plain(folder: str, task_name: str, channel: str) -> NoReturn:
    """Run one trial as a plain subprocess; `channel` is the number of the pipe's descriptor."""
    die_with_parent()
    os.set_inheritable(int(channel), False)
    leave(play(Path(folder), task_name, int(channel)))
