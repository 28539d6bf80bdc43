"""Notice a data worker that dies: a `multiprocessing.Pool` replaces it without a word, and `fit` waits for its batch."""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
from multiprocessing import pool
from typing import Any

from autofit.records.states import FailureKind
from autofit.records.units import how_it_ended
from autofit.trial.wire import Failure, Message
from autofit.trial.worker.job import TrialContext

_LOADER_DEATH = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?P<how>[^.\n]*)")
_HANDING_OVER = "torch/multiprocessing/"


def of_loader(error: BaseException) -> Failure | None:
    """The failure that a torch DataLoader reports when a worker of it died; None for any other error.

    A batch whose memory only the worker could hand over is not received any more, which is another error.
    """
    if isinstance(error, ConnectionError | EOFError | FileNotFoundError) and _is_of_handing_over(error):
        return Failure(FailureKind.WORKER_DIED, f"a worker process died before it had handed over a batch ({error})")
    if not isinstance(error, RuntimeError):
        return None
    links = (str(link) for link in (error.__cause__, error.__context__, error) if link is not None)
    match = next(filter(None, map(_LOADER_DEATH.search, links)), None)
    if match is None:
        return None
    return Failure(FailureKind.WORKER_DIED, f"a worker process (pid {match['pids'].strip()}) {match['how'].strip()}")


def _is_of_handing_over(error: BaseException) -> bool:
    """Whether an error was raised where torch passes memory between processes."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(_HANDING_OVER in frame.f_code.co_filename for frame, _ in frames)


def ignore_children() -> None:
    """Ignore from now on that workers end: torch's handler of the signal raises for each of them, wherever Python is.

    Raises:
        RuntimeError: of that handler, just before it was taken away.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_with_worker(context: TrialContext) -> None:
    """From now on, end this process and report it when a worker of a pool of it dies.

    A pool looks for workers that have ended while it runs, and no more once it ends them itself: any other status than 0
    that it finds is that of a worker which died with a batch. The garbage collector may end a pool in the middle of that,
    in the very thread that looks: then this thread's state says so.
    """
    own_pid = os.getpid()
    join_exited: Any = pool.Pool._join_exited_workers  # type: ignore[attr-defined]  # the only place that sees it

    def join_or_end(workers: list[Any]) -> Any:
        for worker in workers:
            if getattr(threading.current_thread(), "_state", pool.RUN) == pool.TERMINATE:
                break
            if worker.exitcode not in (None, 0) and os.getpid() == own_pid:  # a worker may have pools of its own
                reason = f"a worker process (pid {worker.pid}) {how_it_ended(worker.exitcode)}"
                context.send(Message(failure=Failure(FailureKind.WORKER_DIED, reason)))
                os._exit(1)
        return join_exited(workers)

    pool.Pool._join_exited_workers = staticmethod(join_or_end)  # type: ignore[attr-defined]  # as above
