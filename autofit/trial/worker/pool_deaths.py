"""Notice a data worker that dies: a `multiprocessing.Pool` replaces it without a word, and `fit` waits for its batch."""

from __future__ import annotations

import os
from multiprocessing import pool
from typing import Any

from autofit.records.states import FailureKind
from autofit.records.units import signal_name
from autofit.trial.wire import Failure
from autofit.trial.worker.job import TrialContext


def end_with_worker(context: TrialContext) -> None:
    """From now on, end this process and report it when a worker of a pool of it dies.

    A pool looks for workers that have ended while it runs, and no more once it ends them itself: any other status than 0
    that it finds is that of a worker which died with a batch.
    """
    join_exited: Any = pool.Pool._join_exited_workers  # type: ignore[attr-defined]  # the only place that sees it

    def joined(workers: list[Any]) -> Any:
        for worker in workers:
            if worker.exitcode not in (None, 0) and os.getpid() == process:
                reason = f"a worker process (pid {worker.pid}) {_how(worker.exitcode)}"
                context.send(failure=Failure(FailureKind.WORKER_DIED, reason, device_peak_bytes=None))
                os._exit(1)
        return join_exited(workers)

    process = os.getpid()
    pool.Pool._join_exited_workers = staticmethod(joined)  # type: ignore[attr-defined]  # as above


def _how(exit_code: int) -> str:
    return f"died by {signal_name(-exit_code)}" if exit_code < 0 else f"exited with status {exit_code}"
