"""What crosses the process wall comes out as it went in."""

import os

import pytest

from autofit.errors import TrialProcessError
from autofit.records.states import FailureKind, Phase, Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.server_connection import TrialPipe
from autofit.trial.wire import MESSAGES, TASKS, Failure, Message, Readings, Task, encode
from tests.fakes import DESCRIPTION

MESSAGES_SENT = [
    Message(phase=Phase.TRAINING),
    Message(description=DESCRIPTION),
    Message(readings=Readings(1000.0, None, 0.1, 3, device_peak_bytes_by_phase={"training": 5})),
    Message(failure=Failure(FailureKind.ERROR, "ValueError: no", "Traceback: no")),
]


@pytest.mark.parametrize("message", MESSAGES_SENT)
def test_a_message_comes_out_as_it_went_in(message):
    assert MESSAGES.validate_json(encode(message)) == message


def test_a_task_comes_out_as_it_went_in():
    task = Task(TrialSpec(Role.CONFIRM, FitConfig(8, 1), Limits(None, 2**30), 60.0, batch_sizes=(1, 8)), None)
    assert TASKS.validate_json(TASKS.dump_json(task)) == task


@pytest.fixture
def pipe():
    receiving, sending = os.pipe()
    os.set_blocking(receiving, False)
    yield TrialPipe(1, receiving), sending
    for descriptor in (receiving, sending):
        os.close(descriptor)


def test_a_pipe_keeps_the_latest_phase_and_what_else_came(pipe):
    trial, sending = pipe
    for message in MESSAGES_SENT:
        os.write(sending, encode(message))
    os.write(sending, encode(Message(phase=Phase.VALIDATION))[:10])  # the rest of the line has not arrived
    trial.read()
    assert trial.received == Message(Phase.TRAINING, DESCRIPTION, MESSAGES_SENT[2].readings, MESSAGES_SENT[3].failure)


@pytest.mark.parametrize("line", [b"hello\n", b'{"phase": "dancing"}\n', b'{"readings": {"steps": 1}}\n'])
def test_a_line_that_is_no_message_is_an_error_of_its_own(pipe, line):
    trial, sending = pipe
    os.write(sending, line)
    with pytest.raises(TrialProcessError, match="cannot be read"):
        trial.read()
