"""The entry point of a trial's process: a fork of the warm server, or a plain subprocess."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from autofit import backends
from autofit.errors import UsageError
from autofit.records.states import FailureKind, Phase, Role
from autofit.trial.wire import TASKS, Failure, Message
from autofit.trial.worker import data_workers
from autofit.trial.worker.job import (
    USER_ERROR_FILE,
    DevicePeaks,
    TrialContext,
    first_line,
    saved_user_error,
    user_failure,
)
from autofit.workload import workload
from autofit.workload.binding import bind_all, resolve_reference
from autofit.workload.inputs.fit_input import BatchError

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
            from autofit.trial.worker.script import ScriptRun

            ScriptRun(script, context).run()
            return
        limit(context)
        context.enter(Phase.LOADING)
        with peaks.backend.refusing_late_switches():
            loaded = workload.load(folder)
            named = bind_all(loaded, resolve_reference)  # imports the user's modules
        work(context, loaded, named)

    return finish(context, do)


def limit(context: TrialContext) -> None:
    """Prepare the backend, once it is loaded, before its first operation."""
    backend = context.peaks.backend
    if context.spec.role is Role.DESCRIBE:
        backend.prepare_estimates()
    backend.set_limit(context.placement, context.spec.limits.device_bytes)
    backend.keep_to_one_host()


def work(
    context: TrialContext,
    loaded: workload.Workload,
    named: Mapping[str, Mapping[str, str]],
    of_script: Mapping[str, Any] = {},
) -> None:
    """Describe or measure a workload, whose data has the knobs `named`."""
    # they run operations: the limit is set by now. In a plain process, they also load Keras
    from autofit.trial.worker.describe import describe
    from autofit.trial.worker.measure import measure

    data_workers.end_with_worker(context)
    if context.spec.role is Role.DESCRIBE:
        describe(context, loaded, named, of_script)
    else:
        measure(context, loaded)


def finish(context: TrialContext, do: Callable[[], None]) -> int:
    """Do what a task asks for, send the error that it ends with, if any, and return the exit
    status.
    """
    try:
        do()
    except BaseException as error:
        # torch's handler of this signal raises for each worker that ends
        with contextlib.suppress(RuntimeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # again, if it ran just before it was removed
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        context.send(Message(failure=_failure(context, error)))
        return 1
    return 0


def _failure(context: TrialContext, error: BaseException) -> Failure:
    if isinstance(error, UsageError):
        # data that was described has wrong batches for this config only
        is_of_config = (
            isinstance(error, BatchError) and context.spec.role is not Role.DESCRIBE
        )
        kind = FailureKind.ERROR if is_of_config else FailureKind.USAGE
        return Failure(kind, error.problem, key=error.key)
    died = data_workers.of_loader(error)
    if died is not None:
        return died
    # An error of the user's __getitem__ takes precedence: TensorFlow turns its MemoryError into a
    # ResourceExhaustedError
    raised = saved_user_error(context.folder)
    if raised is not None:
        return raised
    exhausted = context.peaks.backend.exhausted(error)
    if exhausted is None:
        return user_failure(error)
    return Failure(
        exhausted, first_line(error), device_peak_bytes=context.peaks.highest()
    )


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


def leave(status: int) -> NoReturn:
    """End this process at once, without waiting for the threads of an interrupted `fit`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
