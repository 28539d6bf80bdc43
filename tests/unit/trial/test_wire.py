"""What crosses the process wall comes out as it went in."""

import multiprocessing
import os
from types import SimpleNamespace

import pytest

from autofit.records.description import Footprint
from autofit.records.states import FailureKind, Outcome, Phase
from autofit.records.trial import Evidence, Measurement
from autofit.trial import launcher
from autofit.trial.wire import Failure, Message, TrialPipe, encode
from tests.fakes import DESCRIPTION

WALK, XLA = (
    [Footprint(size, {"activations": 7 * size}, method, 0.35) for size in (1, 8)]
    for method in ("walk", "XLA")
)
MEASURED = Measurement(
    Outcome.OK,
    Evidence("finished"),
    samples_per_second=1000.0,
    device_peak_bytes_by_phase={Phase.TRAINING: 5},
)
FAILURE = Failure(FailureKind.ERROR, "ValueError: no", "Traceback: no")


def test_a_pipe_keeps_all_phases_in_order_and_the_latest_of_what_else_came():
    receiving, sending = multiprocessing.Pipe(duplex=False)
    phases = [Phase.BUILDING, Phase.ESTIMATING, Phase.ESTIMATING, Phase.VALIDATION]
    others = [
        Message(description=DESCRIPTION),
        Message(measurement=MEASURED),
        Message(failure=FAILURE),
    ]
    others += [
        *(Message(footprints=(footprint,)) for footprint in WALK),
        Message(estimate_problem="no"),
    ]
    with receiving, sending:
        trial = TrialPipe(1, receiving)
        for message in [*others, *(Message(phase=phase) for phase in phases)]:
            os.write(sending.fileno(), encode(message))
        os.write(
            sending.fileno(), encode(Message(phase=Phase.BUILDING))[:10]
        )  # the rest of the line has not arrived
        assert trial.read() == phases
        assert trial.messages == Message(
            Phase.VALIDATION, DESCRIPTION, tuple(WALK), "no", MEASURED, FAILURE
        )
        assert trial.is_open
        assert trial.read() == []


@pytest.mark.parametrize(
    ("footprints", "estimated", "footprints_described", "problem"),
    [
        ([*WALK], "", WALK, None),
        ([*WALK, *XLA], "", XLA, None),
        (
            [*WALK, XLA[1]],
            None,
            WALK,
            None,
        ),  # ended while XLA compiled: a line of the walk is more than a point of XLA's
        ([], None, [], "ended at its deadline"),
        ([WALK[0]], "cannot be traced", [], "cannot be traced"),
    ],
)
def test_a_description_has_as_much_of_the_estimate_as_arrived(
    footprints, estimated, footprints_described, problem
):
    messages = Message(None, DESCRIPTION, tuple(footprints), estimated)
    described = messages.described("ended at its deadline")
    assert described is not None
    assert (described.footprints, described.estimate_problem) == (
        tuple(footprints_described),
        problem,
    )


def test_what_a_trial_says_as_it_ends_is_told_by_a_driver_that_was_slower():
    receiving, sending = multiprocessing.Pipe(duplex=False)
    for phase in (Phase.LOADING, Phase.TRAINING):
        os.write(sending.fileno(), encode(Message(phase=phase)))
    server = SimpleNamespace(connection=sending, exit_code=lambda pid: 0)
    watcher = SimpleNamespace(rest_seconds=0)
    heard = []
    pipe = TrialPipe(1, receiving)
    exit_code = launcher._wait_for_exit(
        server, pipe, watcher, None, heard.append, estimates_all=True
    )
    assert exit_code == 0
    assert heard == [Phase.LOADING, Phase.TRAINING]
