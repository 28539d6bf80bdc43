"""What a pool of worker processes would do to the data."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from autofit.trial.worker.data_workers import FAILS, SAME_NUMBERS, problem_of
from tests import workloads as w

draw = np.random.default_rng(0)
here = os.getpid()


def fail(end):
    if os.getpid() != here:
        end()
    return (np.ones(3),)


@pytest.fixture
def start_method(request):
    """Processes are started by this method."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize("start_method", ["fork"], indirect=True)
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: (draw.normal(size=4),), SAME_NUMBERS),
        (lambda: (np.random.default_rng().normal(size=4),), None),
        (lambda: (np.ones(3),), None),
        (lambda: fail(lambda: os.kill(os.getpid(), signal.SIGKILL)), FAILS),
        (lambda: fail(lambda: 1 / 0), FAILS),
    ],
    ids=["one generator", "a generator each", "no numbers", "dies", "raises"],
)
def test_what_forked_workers_would_do_is_found(start_method, make, problem):
    assert problem_of(make) == problem


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"], indirect=True)
def test_workers_that_are_not_forks_must_be_able_to_receive_the_data(start_method):
    assert problem_of(fail, {"x": np.ones(3), "lock": multiprocessing.Lock()}) is None
    problem = problem_of(fail, {"x": lambda: None})
    assert "cannot be sent to one (" in problem
    assert "lambda" in problem


@pytest.mark.parametrize(
    ("data", "problem", "hang"),
    [(w.TensorFlowInside, FAILS, True), (w.SameNumbers, SAME_NUMBERS, False)],
)
def test_the_describing_trial_says_what_processes_would_do(
    turn, play, data, problem, hang
):
    described = play(turn(data=data), role="describe")
    assert (described.notices, described.processes_hang) == ((problem,), hang)
