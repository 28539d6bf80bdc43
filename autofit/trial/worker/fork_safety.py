"""Check whether forked workers can make the user's data: they may all draw the same random numbers, or hang.

Keras forks its pools on Linux and does not seed the workers (Keras 3.15, `OrderedEnqueuer`). The check makes the first
batch twice in this process and once in each of two forks: if the former differ and the latter do not, the workers draw the
same numbers. A fork that does not answer, or dies, runs code that does not survive a fork, such as TensorFlow operations.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from autofit.records.units import signal_name
from autofit.workload.inputs.batch import components, leaves

_PATIENCE_SECONDS = 5.0  # least wait for a batch in a fork
_PATIENCE_RATIO = 10.0  # of the time that two batches take in this process: a slow batch is not a hang

SAME_NUMBERS = (
    "worker processes would all draw the same random numbers: the data uses a generator that is made once and copied "
    "by the fork. Make a generator in __getitem__: np.random.default_rng((seed, index))"
)
FAILS = (
    "a forked worker {how}, as when __getitem__ runs TensorFlow operations; worker processes are not tried. Use NumPy in "
    "__getitem__, or threads"
)


def problem_of(make: Callable[[], Any]) -> str | None:
    """Return `SAME_NUMBERS`, `FAILS` with how, or None if forked workers make the same data as one process.

    Args:
        make: makes the first batch.
    """
    if multiprocessing.get_start_method() != "fork":
        return None
    started = time.perf_counter()
    digests = {_digest(make()), _digest(make())}
    patience_seconds = _PATIENCE_SECONDS + _PATIENCE_RATIO * (time.perf_counter() - started)
    try:
        first = _digest_in_fork(make, patience_seconds)
        return SAME_NUMBERS if len(digests) > 1 and first == _digest_in_fork(make, patience_seconds) else None
    except _WorkerError as error:
        return FAILS.format(how=error)


class _WorkerError(Exception):
    """A forked worker does not make its batch; the text says how."""


def _digest_in_fork(make: Callable[[], Any], patience_seconds: float) -> bytes:
    """The digest of a batch that a fork makes.

    Raises:
        _WorkerError: it does not arrive in time, or the fork dies.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send_digest, args=(make, sending), daemon=False)
    process.start()
    sending.close()
    try:
        if not receiving.poll(patience_seconds):
            raise _WorkerError("does not finish a batch")
        return bytes(receiving.recv())
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"dies by {signal_name(-code)}" if code < 0 else f"ends with status {code}"
        raise _WorkerError(f"{how} before it finishes a batch") from None
    finally:
        process.kill()
        process.join()
        receiving.close()


def _send_digest(make: Callable[[], Any], sending: Connection) -> None:
    sending.send(_digest(make()))


def _digest(batch: Any) -> bytes:
    digest = hashlib.sha256()
    for leaf in leaves(batch):
        for part in components(leaf):
            digest.update(part.tobytes())
    return digest.digest()
