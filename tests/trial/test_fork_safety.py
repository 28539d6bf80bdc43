"""What a pool of forked workers would do to the data."""

import os
import signal

import numpy as np
import pytest

from autofit.trial.worker.data_workers import FAILS, SAME_NUMBERS, problem_of
from tests import workloads as w

draw, here = np.random.default_rng(0), os.getpid()


def fail(end):
    if os.getpid() != here:
        end()
    return (np.ones(3),)


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
def test_what_forked_workers_would_do_is_found(make, problem):
    assert problem_of(make) == problem


@pytest.mark.parametrize(
    ("data", "problem", "hang"),
    [(w.TensorFlowInside, FAILS, True), (w.SameNumbers, SAME_NUMBERS, False)],
)
def test_the_describing_trial_says_what_processes_would_do(turn, play, data, problem, hang):
    described = play(turn(data=data), role="describe")
    assert (described.notices, described.processes_hang) == ((problem,), hang)
