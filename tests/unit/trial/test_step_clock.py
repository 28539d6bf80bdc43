import threading

import pytest

from autofit.trial.worker import step_clock
from autofit.trial.worker.step_clock import (
    SteadyRate,
    StepClock,
    ceiling,
    steps_to_drain,
    wait_until_full,
)


@pytest.fixture
def clock_time(monkeypatch):
    """A time that a test sets by hand."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        step_clock.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    return now


def run(clock, now, durations):
    for duration in durations:
        now[0] += duration
        clock.step_ended()
        if clock.done:
            return


ROUNDS = {"prefilled": 2, "round_steps": 4, "measure_seconds": 3.0}
# What is not counted: how the clock is set, the seconds of each step, and the rate and
# the number of the steps that count.
UNCOUNTED = {
    "slow first steps": ({"warm_up": 3}, [5.0, 0.2, 0.2, *[0.1] * 100], 100, None),
    "a warm-up of slow steps is cut short": (
        {"warm_up": 6},
        [9.0, 2.0, 1.0, 1.0, 1.0],
        10,
        3,
    ),
    "a GPU's clock rises": ({"warm_up_seconds": 0.495}, [0.01] * 60, 1000, 9),
    "what a full queue held": (
        {"prefilled": 5},
        [1.0, 0.1, *[0.01] * 5, *[0.1] * 100],
        100,
        None,
    ),
    "after the end": ({}, [0.1, 0.1, 1.0, 1.0, 1.0, *[0.001] * 50], 10, 3),
    "parts of a round": (
        ROUNDS,
        [0.5, 0.5, 0.0, 0.0, *[1.2, 0.0, 0.0, 0.0] * 4],
        4 * 10 / 1.2,
        8,
    ),
}


@pytest.mark.parametrize("case", UNCOUNTED)
def test_steps_that_are_not_steady_do_not_count(clock_time, case):
    settings, durations, rate, steps = UNCOUNTED[case]
    clock = StepClock(10, **{"measure_seconds": 2.0, **settings})
    run(clock, clock_time, durations)
    assert clock.rate().samples_per_second == pytest.approx(rate)
    assert steps in (None, clock.rate().steps)


@pytest.mark.parametrize(
    ("settings", "durations", "least", "most"),
    [
        ({}, [0.05], 0.45, 2.0),
        ({}, [0.05] * 4 + [0.4], 5.0, 5.5),
        (
            {"enough_spread": 0.0, "to_beat": 30.0},
            [0.045, 0.055],
            0.4,
            0.8,
        ),  # surely too slow
        ({"enough_spread": 0.0, "to_beat": 19.0}, [0.045, 0.055], 5.0, 5.1),
    ],
)
def test_a_run_is_as_long_as_its_rate_needs(
    clock_time, settings, durations, least, most
):
    clock = StepClock(1, 5.0, **settings)
    run(clock, clock_time, durations * 1000)
    assert clock.done
    assert least <= clock.rate().steps * clock.rate().step_seconds <= most


@pytest.mark.parametrize(
    ("most", "seconds"), [(11, 3.5), (10**9, 10)], ids=["full", "never full"]
)
def test_a_queue_is_waited_for_until_nothing_new_comes_and_not_forever(
    clock_time, most, seconds
):
    wait_until_full(lambda: min(most, int(clock_time[0] / 0.2)), batch_seconds=0.2)
    assert min(most, 11) * 0.2 <= clock_time[0] < seconds


@pytest.mark.parametrize(
    ("queued", "begun", "input_rate", "steps"),
    [
        (12, 0, 0.0, 12),
        (12, 0, 50.0, 24),
        (12, 0, 95.0, 36),
        (12, 0, 110.0, 12),
        (0, 4, 99.0, 4),
        (0, 4, 100.0, 0),
    ],
)
def test_a_queue_drains_more_slowly_than_steps_take_batches_out_of_it(
    queued, begun, input_rate, steps
):
    assert steps_to_drain(queued, begun, input_rate, 100.0) == steps


def test_what_is_compiled_in_the_steady_part_is_told_apart(clock_time):
    compiled = [0.0]
    clock = StepClock(8, 1.0, warm_up=2, compiled=lambda: compiled[0])
    for seconds in (5.0, 0.1, 0.1, 0.4, 0.4, 0.4):
        clock_time[0] += seconds
        # all but a tenth of a second of each step
        compiled[0] += seconds - 0.1
        clock.step_ended()
    assert clock.done
    assert clock.compiling_seconds == pytest.approx(0.9)


def test_a_short_step_counts_as_its_share(clock_time):
    """An epoch of 5 batches, of which a call trains on 4.

    In each fifth of a second there is a whole call and a quarter of one.
    """
    clock = StepClock(4 * 8, measure_seconds=2.0)
    for number in range(40):
        clock_time[0] += 0.04 if number % 2 else 0.16
        clock.step_ended(share=0.25 if number % 2 else 1.0)
    assert clock.rate().samples_per_second == pytest.approx(5 * 8 / 0.2, rel=0.05)


@pytest.mark.parametrize(("steps", "rate"), [(20, 80.0), (2, 16.0)])
def test_the_beginning_of_an_epoch_does_not_count_unless_epochs_have_few_steps(
    clock_time, steps, rate
):
    clock = StepClock(8, measure_seconds=6.0)
    for number in range(100):
        clock_time[0] += 0.1 if number % steps else 0.9
        clock.step_ended()
        if number % steps == steps - 1:
            clock.epoch_ended()
    assert clock.rate().samples_per_second == pytest.approx(rate, rel=0.01)


def test_of_steps_that_go_on_the_ends_are_noted_when_they_are_over():
    over = [threading.Event() for _ in range(64)]
    clock = StepClock(10, 100.0, warm_up=1)
    over[0].set()
    for event in over:  # all are begun at once; the first is waited for
        clock.step_ended(event.wait)
    assert clock.steps_done == 64
    assert len(clock._ends) < 2
    for event in over:
        event.set()
    step_clock._WAITING.submit(int).result()  # the thread waits for the steps in turn
    assert (
        clock.rate().steps >= 31
    )  # of the first few some are noted, further and further apart


@pytest.mark.parametrize(
    ("settings", "waited"),
    [
        (
            {"most_ahead": 2},
            [0, 0, *range(8)],
        ),  # the first, the last of the warm-up, then the one two steps ago
        ({"steps": 10}, [0, 9]),
    ],
)
def test_a_clock_may_let_few_steps_only_be_under_way_and_waits_for_the_last_of_a_given_number(
    settings, waited
):
    ends = []
    clock = StepClock(10, 100.0, warm_up=1, **settings)
    for number in range(10):
        clock.step_ended(lambda number=number: ends.append(number))
        assert clock.done is ("steps" in settings and number == 9)
    assert ends == waited


def test_a_queue_that_fills_after_the_steady_part_does_not_change_the_rate(clock_time):
    closings = []

    def closing():
        closings.append(clock_time[0])
        clock_time[0] += 5.0

    clock = StepClock(10, measure_seconds=3.0, closing=closing)
    run(clock, clock_time, [1.0] + [0.1] * 50)
    assert closings == [pytest.approx(2.0)]  # equal steps are precise soon
    assert clock.steps_done == 13  # two of them with the full queue
    assert clock.rate().samples_per_second == pytest.approx(100.0)
    assert clock.rate().steps == 9


def test_a_rate_alone_that_is_below_that_of_both_is_raised_and_is_no_reading():
    both, slower, faster = (
        SteadyRate(rate, 0.1, 0.01, 100) for rate in (1000.0, 900.0, 1500.0)
    )
    assert [ceiling(alone, both) for alone in (slower, faster, None)] == [
        (1000.0, False),
        (1500.0, True),
        (None, False),
    ]
