"""The clock of epochs, and which epochs are timed."""

from types import SimpleNamespace

import pytest

from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.worker import step_clock
from autofit.trial.worker.step_clock import Epochs, SteadyRate, planned_epochs

STEADY = SteadyRate(1000.0, 0.1, 0.02, 100)  # calls of 20 samples
SPEC = TrialSpec(Role.CONFIRM, FitConfig(20), Limits(None, 2**33), 60, 2.5, longest_epoch_seconds=500.0)


@pytest.fixture
def trained(monkeypatch):
    """Train epochs of calls on a clock of the test's own, with a second before each epoch."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])

    def trained(clock, count, calls, waits=False):
        for _ in range(count):
            now[0] += 1.0
            for _ in range(calls):
                over = (lambda at=now[0] + 0.02: now.__setitem__(0, max(now[0], at))) if waits else None
                now[0] += 0.0 if waits else 0.02
                clock.step_ended(over)
            clock.epoch_ended()
            if clock.done:
                break
        return clock

    return trained


@pytest.mark.parametrize("waits", [False, True])
def test_a_gap_is_what_the_first_call_takes_beyond_a_steady_one(trained, waits):
    read = trained(Epochs({}, 5, 20_000, 0.5, are_whole=False), 3, 1 if waits else 5, waits).readings(STEADY)
    assert read["epoch_gap_seconds"] == pytest.approx(1.0)
    assert read["samples_per_second"] == pytest.approx(20_000 / 21)
    assert read["spread"] == pytest.approx(0.1 * 20 / 21)


def test_whole_epochs_are_timed_from_the_end_of_the_first(trained):
    clock = trained(Epochs({}, 5, 100, 2.5, are_whole=True), 10, 5)
    read = clock.readings(STEADY)
    assert clock.steps_done == 4 * 5
    assert read["samples_per_second"] == pytest.approx(100 / 1.1)
    assert read["epoch_gap_seconds"] == pytest.approx(1.0)


def test_a_training_that_a_callback_ends_has_no_gap(trained):
    clock = trained(Epochs({}, 5, 100, 2.5, are_whole=True), 2, 5)
    assert clock.readings(STEADY) == {"epoch_gap_unread": step_clock.ENDED}


def plan(length, rate=1000.0, options=None, workers=1, **spec):
    """The plan for data of so many batches of 20, and its arguments."""
    data = SimpleNamespace(
        batch_samples=20,
        epoch_batches=length,
        sample_count=lambda: None if length is None else 20 * length,
        applied=FitConfig(None, workers, 10, False),
        epoch_arguments=lambda steps, count: {"x": steps, "epochs": count},
    )
    return planned_epochs(data, options or {}, SPEC if not spec else TrialSpec(**{**vars(SPEC), **spec}), 2, rate)


def test_short_epochs_are_timed_whole():
    timed = plan(100)
    assert timed.are_whole
    assert (timed.arguments["x"], timed.steps, timed.samples) == (100, 100, 2000)


def test_of_long_epochs_the_gaps_are_read_with_all_workers_at_work():
    assert (plan(1000).steps, plan(1000, workers=8).steps, plan(1000, workers=8, rate=100.0).steps) == (4, 8, 4)
    assert not plan(1000).are_whole
    assert plan(1000).samples == 20_000


@pytest.mark.parametrize(
    ("length", "samples", "kept"), [(None, 800, True), (100, 800, True), (40, 800, False), (20, 400, False)]
)
def test_the_iterator_is_kept_if_the_user_ends_epochs_before_the_data(length, samples, kept):
    timed = plan(length, options={"steps_per_epoch": 40})
    assert (timed.samples, timed.arguments.get("steps_per_epoch")) == (samples, 4 if kept else None)
    assert plan(None, options={"steps_per_epoch": 40}, epoch_samples=1600).samples == 1600


def test_no_gap_is_read_that_cannot_matter_or_of_unknown_epochs():
    assert plan(1000, longest_epoch_seconds=0.0) == ""
    assert plan(1000, longest_epoch_seconds=19.0) == "an epoch takes more than 19 s"
    assert plan(None) == step_clock.UNKNOWN
