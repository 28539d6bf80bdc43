"""What a pool of forked workers would do to the data."""

import os
import signal

import numpy as np
import pytest

from autofit.records.trial import FitConfig
from autofit.trial.worker import data_workers
from tests import workloads as w

draw = np.random.default_rng(0)


def test_numbers_that_each_fork_draws_alike_are_told():
    assert data_workers.problem_of(lambda: (draw.normal(size=4),)) == data_workers.SAME_NUMBERS
    assert data_workers.problem_of(lambda: (np.random.default_rng().normal(size=4),)) is None
    assert data_workers.problem_of(lambda: (np.ones(3),)) is None


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0])
def test_a_worker_that_dies_is_found(end):
    here = os.getpid()

    def dies():
        if os.getpid() != here:
            end()
        return (np.ones(3),)

    assert data_workers.problem_of(dies) == data_workers.FAILS


@pytest.mark.parametrize(
    ("data", "told", "hang"),
    [
        (w.TensorFlowInside, data_workers.FAILS, True),
        (w.SameNumbers, data_workers.SAME_NUMBERS, False),
        (w.Cases, None, False),
    ],
)
def test_the_describing_trial_says_what_processes_would_do(turn, play, data, told, hang):
    described = play(turn(data=data), FitConfig(8, 1, 10, False), role="describe")
    assert described.notices == (() if told is None else (told,))
    assert described.processes_hang is hang
