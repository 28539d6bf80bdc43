"""What a task does in its process, once its workload is known, and how the process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from autofit.errors import UsageError
from autofit.records.states import FailureKind, Role
from autofit.trial.wire import Failure, Message
from autofit.trial.worker import data_workers
from autofit.trial.worker.job import (
    TrialContext,
    first_line,
    saved_user_error,
    user_failure,
)
from autofit.workload import workload
from autofit.workload.inputs.fit_input import BatchError


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


def leave(status: int) -> NoReturn:
    """End this process at once, without waiting for the threads of an interrupted `fit`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
