"""Workers that a pool ends itself are no deaths.

Those that die are in tests/trial/test_outcomes.py.
"""

import os
import signal
import threading
from multiprocessing import pool
from types import SimpleNamespace

import pytest

from autofit.records.states import FailureKind
from autofit.trial.worker import data_workers


class Ended(BaseException):
    """The process would have ended."""


class Worker:
    """Gives the statuses in turn, and from then on the last."""

    pid = 7

    def __init__(self, *statuses):
        self.statuses = [*statuses]

    def join(self):
        pass

    @property
    def exitcode(self):
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@pytest.fixture
def sent(monkeypatch):
    """What is reported; ending the process raises."""

    def end(status):
        raise Ended

    reported = []
    monkeypatch.setattr(
        pool.Pool, "_join_exited_workers", pool.Pool._join_exited_workers
    )
    monkeypatch.setattr(os, "_exit", end)
    data_workers.end_with_worker(
        SimpleNamespace(send=lambda message: reported.append(message.failure))
    )
    return reported


def test_a_worker_that_died_is_reported_even_if_it_dies_while_its_pool_asks(sent):
    workers = [Worker(None, -signal.SIGSEGV)]
    pool.Pool._join_exited_workers(workers)
    assert (len(workers), sent) == (1, [])
    with pytest.raises(Ended):
        pool.Pool._join_exited_workers(workers)
    assert [(failure.kind, "SIGSEGV" in failure.reason) for failure in sent] == [
        (FailureKind.WORKER_DIED, True)
    ]


def test_one_that_its_pool_ended_is_not(sent):
    workers = [Worker(-signal.SIGTERM)]
    thread = threading.Thread(target=lambda: pool.Pool._join_exited_workers(workers))
    thread._state = pool.TERMINATE
    thread.start()
    thread.join()
    assert (sent, workers) == ([], [])
