"""What a pool of forked workers would do to the user's data: the same random numbers in each, or a hang.

Keras's pools are forked (on Linux), and do not seed their workers (Keras 3.15, `OrderedEnqueuer`). So the first batch is
made twice here, and once in each of two forks: if the two here differ and those of the forks do not, the workers draw the
same numbers. A fork that does not answer runs what does not live through a fork, as TensorFlow's operations do not.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from autofit.workload.inputs.batch import leaves

_PATIENCE_SECONDS = 5.0
_BATCHES = 10.0  # times what a batch took here

SAME_NUMBERS = (
    "worker processes would all draw the same random numbers: the data uses a generator that is made once and copied "
    "by the fork. Make one in __getitem__, as in np.random.default_rng((seed, index))"
)
HANGS = (
    "a batch does not come to its end in a forked worker: TensorFlow operations in __getitem__ do that. "
    "Processes are not tried; use NumPy there, or threads"
)


def problem_of(make: Callable[[], Any]) -> str | None:
    """`SAME_NUMBERS`, `HANGS`, or None where forked workers do as one process does.

    Args:
        make: makes the first batch.
    """
    if multiprocessing.get_start_method() != "fork":
        return None
    started = time.perf_counter()
    here = {_digest(make()), _digest(make())}
    patience = _PATIENCE_SECONDS + _BATCHES * (time.perf_counter() - started)
    first = _in_a_fork(make, patience)
    if first is None:
        return HANGS
    return SAME_NUMBERS if len(here) > 1 and first == _in_a_fork(make, patience) else None


def _in_a_fork(make: Callable[[], Any], patience: float) -> bytes | None:
    """The digest of a batch that a fork makes; None if it does not come in time."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(make, sending), daemon=False)
    process.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(patience) else None
    except EOFError:  # it died: what it died of is for the trials to tell
        return b""
    finally:
        process.kill()
        process.join()
        receiving.close()


def _tell(make: Callable[[], Any], sending: Connection) -> None:
    sending.send(_digest(make()))


def _digest(batch: Any) -> bytes:
    digest = hashlib.sha256()
    for leaf in leaves(batch):
        digest.update(leaf.tobytes())
    return digest.digest()
