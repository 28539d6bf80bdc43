"""The clock of epochs, and which epochs are timed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autofit.records.knobs import FitConfig
from autofit.records.states import Role
from autofit.records.trial import Limits, TrialSpec
from autofit.trial.worker import step_clock
from autofit.trial.worker.step_clock import Epochs, SteadyRate, planned_epochs

STEADY = SteadyRate(1000.0, 0.1, 0.02, 100)  # calls of 20 samples
SPEC = TrialSpec(
    Role.CONFIRM,
    FitConfig(20),
    Limits(None, 2**33),
    60,
    2.5,
    longest_epoch_seconds=500.0,
)


@pytest.fixture
def trained(monkeypatch):
    """Train epochs of five calls on a clock of the test's own, with a second before each epoch."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])

    def trained(samples, seconds, *, count=10, are_whole=True, waits=False, late=()):
        clock = Epochs({}, 5, samples, seconds, are_whole=are_whole)
        while not clock.done and count:
            now[0] += 2.0 if count in late else 1.0
            count -= 1
            for _ in range(5):
                over = (
                    (lambda at=now[0] + 0.02: now.__setitem__(0, max(now[0], at)))
                    if waits
                    else None
                )
                now[0] += 0.0 if waits else 0.02
                clock.step_ended(over)
            clock.epoch_ended()
        return clock.steps_done, clock.readings(STEADY)

    return trained


@pytest.mark.parametrize("late", [(), {9}])
@pytest.mark.parametrize("waits", [False, True])
def test_a_gap_is_what_the_first_call_takes_beyond_a_steady_one(trained, waits, late):
    _, read = trained(20_000, 0.5, are_whole=False, waits=waits, late=late)
    assert read["epoch_gap_seconds"] == pytest.approx(1.0)
    assert read["samples_per_second"] == pytest.approx(20_000 / 21)
    assert read["spread"] == pytest.approx(0.1 * 20 / 21)


def test_whole_epochs_are_timed_from_the_end_of_the_first_unless_a_callback_ends_the_training(
    trained,
):
    steps, read = trained(100, 2.5)
    assert steps == 5 * 5
    assert read["samples_per_second"] == pytest.approx(100 / 1.1)
    assert read["epoch_gap_seconds"] == pytest.approx(1.0)
    assert trained(100, 6.0, late={9, 7})[1] == pytest.approx(read)
    assert trained(100, 2.5, count=2)[1] == {"epoch_gap_unread": step_clock.ENDED}


def plan(length, rate=1000.0, options=None, workers=1, **spec):
    """The plan for data of so many batches of 20, two in a call."""
    data = SimpleNamespace(
        batch_samples=20,
        epoch_batches=length,
        sample_count=lambda: None if length is None else 20 * length,
        applied=FitConfig(None, workers, 10, False),
        epoch_arguments=lambda steps, count: {"x": steps, "epochs": count},
    )
    return planned_epochs(data, options or {}, replace(SPEC, **spec), 2, rate)


FORTY = {"options": {"steps_per_epoch": 40}}


@pytest.mark.parametrize(
    ("length", "given", "planned"),
    [
        (30, {}, {"are_whole": True, "steps": 30, "samples": 600}),  # short epochs
        (
            1000,
            {},
            {"are_whole": False, "steps": 4, "samples": 20_000},
        ),  # of long ones, the gaps
        (1000, {"workers": 8}, {"steps": 8}),  # with all workers at work
        (
            None,
            FORTY,
            {"samples": 800, "steps_per_epoch": 4},
        ),  # Keras keeps the iterator
        (
            None,
            {**FORTY, "epoch_samples": 1600},
            {"samples": 1600, "steps_per_epoch": 4},
        ),
        (40, FORTY, {"samples": 800, "steps_per_epoch": None}),
    ],
)
def test_epochs_are_as_the_users(length, given, planned):
    timed = plan(length, **given)
    actual = {"steps_per_epoch": timed.arguments.get("steps_per_epoch"), **vars(timed)}
    assert planned == {name: actual[name] for name in planned}


def test_no_gap_is_read_that_cannot_matter_or_of_unknown_epochs():
    assert plan(1000, longest_epoch_seconds=0.0) == ""
    assert "19 s" in plan(1000, longest_epoch_seconds=19.0)
    assert plan(None) == step_clock.UNKNOWN
