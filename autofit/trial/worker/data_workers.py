"""Check the worker processes of the user's data: can they be forked, and has one died?"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import pool
from typing import Any

from autofit.backends.exhaustion import chain, message_of
from autofit.records.states import FailureKind
from autofit.records.units import how_it_ended
from autofit.trial.wire import Failure, Message
from autofit.trial.worker.job import TrialContext, first_line
from autofit.workload.inputs.batch import components, leaves

_PATIENCE_SECONDS = 5.0  # shortest wait for a batch in a fork
# times the seconds that two batches take in this process: a slow batch is not a hang
_PATIENCE_RATIO = 10.0
_LOADER_DEATH = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?P<how>[^.\n]*)"
)
# the part of torch that passes memory between processes
_HANDING_OVER = "torch/multiprocessing/"

SAME_NUMBERS = (
    "worker processes would all draw the same random numbers: the data uses a generator that is "
    "made once and copied by the fork. Make a generator in __getitem__: "
    "np.random.default_rng((seed, index))"
)
FAILS = (
    "a forked worker does not finish a batch, for example because __getitem__ runs operations of "
    "Keras's backend, so autofit does not try worker processes. Use NumPy in __getitem__, or "
    "threads"
)


def problem_of(make: Callable[[], Any], sent: Any = None) -> str | None:
    """Return why worker processes cannot be used; None if forks make the first batch correctly.

    Workers that are not forks, as Python starts them from 3.14 on, must be able to receive what is
    `sent`.
    """
    # Keras forks its pools on Linux and does not seed the workers (Keras 3.15, `OrderedEnqueuer`).
    # The first batch is made twice in this process and, if the two differ, once in each of two
    # forks. If those of the forks are the same, all workers would draw the same random numbers. A
    # fork that does not answer, or dies, runs code that does not survive a fork, such as TensorFlow
    # operations.
    method = multiprocessing.get_start_method()
    if method != "fork":
        # a lock can be pickled while a process starts, and at no other time; unpickling it would
        # load Keras
        process = multiprocessing.Process(target=bool, args=(sent,))
        try:
            process.start()
        except Exception as error:
            # of any method by which the user's objects are pickled
            return (
                f"worker processes are not tried: this Python starts them by {method}, and the "
                f"data cannot be sent to one ({first_line(error)}). Define its class at the top of "
                "a module that your program imports, or use threads"
            )
        process.kill()
        process.join()
        return None
    started = time.perf_counter()
    unforked = {_digest(make()), _digest(make())}
    seconds = time.perf_counter() - started
    patience_seconds = _PATIENCE_SECONDS + _PATIENCE_RATIO * seconds
    forked = {_digest_in_fork(make, patience_seconds)}
    if None not in forked and len(unforked) > 1:
        forked.add(_digest_in_fork(make, patience_seconds))
    if None in forked:
        return FAILS
    return SAME_NUMBERS if len(unforked) > len(forked) else None


def _digest_in_fork(make: Callable[[], Any], patience_seconds: float) -> bytes | None:
    """Return the digest of a batch that a fork makes; None if it dies or does not answer."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=lambda: sending.send(_digest(make())))
    process.start()
    sending.close()
    digest: bytes | None = None
    with receiving, contextlib.suppress(EOFError):
        if receiving.poll(patience_seconds):
            digest = receiving.recv()
    process.kill()
    process.join()
    return digest


def _digest(batch: Any) -> bytes:
    parts = [components(leaf) for leaf in leaves(batch)]
    return hashlib.sha256(pickle.dumps(parts)).digest()


def of_loader(error: BaseException) -> Failure | None:
    """Return the failure of a torch DataLoader one of whose workers died; None for other errors."""
    # if the worker died before it handed over the memory of a batch, torch raises a different type
    # of error
    is_in_torch = any(
        _HANDING_OVER in frame.f_code.co_filename
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    if (
        isinstance(error, ConnectionError | EOFError | FileNotFoundError)
        and is_in_torch
    ):
        reason = f"a worker process died before it had handed over a batch ({error})"
        return Failure(FailureKind.WORKER_DIED, reason)
    messages = "\n".join(map(message_of, chain(error)))
    match = _LOADER_DEATH.search(messages)
    if match is None or not isinstance(error, RuntimeError):
        return None
    reason = f"a worker process (pid {match['pids'].strip()}) {match['how'].strip()}"
    return Failure(FailureKind.WORKER_DIED, reason)


def end_with_worker(context: TrialContext) -> None:
    """Report and end this process if a worker of a pool dies from now on."""
    # a `multiprocessing.Pool` silently replaces a worker that dies, and `fit` waits for its batch
    # forever
    own_pid = os.getpid()
    # the only place that sees the death
    any_pool: Any = pool.Pool
    join_exited = any_pool._join_exited_workers

    # The workers that the pool has taken from its list have ended; to ask for their status before
    # that would miss those that end in between. A pool removes workers only until it terminates
    # them itself, so one with a status other than 0 died while it made a batch. If the pool is
    # terminated meanwhile, the state of the thread says so before a worker is killed.
    def join_or_end(workers: list[Any]) -> Any:
        before = [*workers]
        has_changed = join_exited(workers)
        state = getattr(threading.current_thread(), "_state", pool.RUN)
        # a worker may have its own pools
        if state == pool.TERMINATE or os.getpid() != own_pid:
            return has_changed
        for worker in before:
            if worker not in workers and worker.exitcode:
                reason = f"a worker process (pid {worker.pid}) {how_it_ended(worker.exitcode)}"
                context.send(Message(failure=Failure(FailureKind.WORKER_DIED, reason)))
                os._exit(1)
        return has_changed

    any_pool._join_exited_workers = staticmethod(join_or_end)
