"""Workers that a pool ends itself are no deaths; the real ones are in tests/trial/test_lifetime.py."""

import os
import signal
import threading
from multiprocessing import pool
from types import SimpleNamespace

import pytest

from autofit.records.states import FailureKind
from autofit.trial.worker import data_workers

ENDED = SimpleNamespace(exitcode=-signal.SIGTERM, pid=7, join=lambda: None)


class Ended(BaseException):
    """The process would have ended."""


@pytest.fixture
def sent(monkeypatch):
    """What is reported; ending the process raises."""

    def end(status):
        raise Ended

    reported = []
    monkeypatch.setattr(pool.Pool, "_join_exited_workers", pool.Pool._join_exited_workers)
    monkeypatch.setattr(os, "_exit", end)
    data_workers.end_with_worker(SimpleNamespace(send=lambda message: reported.append(message.failure)))
    return reported


def test_a_worker_that_died_is_reported(sent):
    with pytest.raises(Ended):
        pool.Pool._join_exited_workers([ENDED])
    assert [failure.kind for failure in sent] == [FailureKind.WORKER_DIED]
    assert "died by SIGTERM" in sent[0].reason


def test_one_that_its_pool_ended_is_not(sent):
    workers = [ENDED]
    handler = threading.Thread(target=lambda: pool.Pool._join_exited_workers(workers))
    handler._state = pool.TERMINATE
    handler.start()
    handler.join()
    assert (sent, workers) == ([], [])


def test_a_worker_that_dies_while_its_pool_asks_is_reported(sent):
    class Dying:
        """Still runs when it is first asked."""

        pid, statuses = 7, [None]

        def join(self):
            pass

        @property
        def exitcode(self):
            return self.statuses.pop() if self.statuses else -signal.SIGSEGV

    workers = [Dying()]
    pool.Pool._join_exited_workers(workers)
    assert workers
    with pytest.raises(Ended):
        pool.Pool._join_exited_workers(workers)
    assert "died by SIGSEGV" in sent[0].reason
