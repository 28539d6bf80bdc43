import concurrent.futures
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.trial.worker import step_clock
from autofit.trial.worker.step_clock import SteadyRate, StepClock, ceiling, steady_rate, steps_to_drain, wait_until_full


@pytest.fixture
def clock_time(monkeypatch):
    """A time that a test sets by hand."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(step_clock.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


# what is not counted: how the clock is set, the seconds of each step, and the rate and the number of the steps that count
UNCOUNTED = {
    "slow first steps": ({"warm_up": 3}, [5.0, 0.2, 0.2, *[0.1] * 100], 100, None),
    "a warm-up of slow steps is cut short": ({"warm_up": 6}, [9.0, 2.0, 1.0, 1.0, 1.0], 10, 3),
    "a GPU's clock rises": ({"warm_up_seconds": 0.495}, [0.01] * 60, 1000, 9),
    "what a full queue held": ({"prefilled": 5}, [1.0, 0.1, *[0.01] * 5, *[0.1] * 100], 100, None),
    "after the end": ({}, [0.1, 0.1, 1.0, 1.0, 1.0, *[0.001] * 50], 10, 3),
    "parts of a round": (
        {"prefilled": 2, "round_steps": 4, "measure_seconds": 3.0},
        [0.5, 0.5, 0.0, 0.0, *[1.2, 0.0, 0.0, 0.0] * 4],
        4 * 10 / 1.2,
        8,
    ),
}
# how the clock is set, the seconds of each step, and the least and the most seconds of the steps that count
LENGTHS = {
    "steady": ({}, [0.05] * 1000, 0.45, 2.0),
    "noisy": ({}, [0.05, 0.05, *([0.05] * 4 + [0.4]) * 100], 5.0, 5.5),
    "all of its time": ({"enough_spread": 0.0}, [0.05] * 1000, 5.0, 5.1),
    "of known length": ({"steps": 40}, [0.05] * 1000, 1.999, 2.001),
}


def run(clock, now, durations):
    for duration in durations:
        now[0] += duration
        clock.step_ended()
        if clock.done:
            return


@pytest.mark.parametrize("case", UNCOUNTED)
def test_steps_that_are_not_steady_do_not_count(clock_time, case):
    settings, durations, rate, steps = UNCOUNTED[case]
    clock = StepClock(10, **{"measure_seconds": 2.0, **settings})
    run(clock, clock_time, durations)
    assert clock.rate().samples_per_second == pytest.approx(rate)
    assert steps in (None, clock.rate().steps)


@pytest.mark.parametrize("case", LENGTHS)
def test_a_run_is_as_long_as_its_rate_needs(clock_time, case):
    settings, durations, least, most = LENGTHS[case]
    clock = StepClock(1, 5.0, **settings)
    run(clock, clock_time, durations)
    assert clock.done
    assert least <= clock.rate().steps * clock.rate().step_seconds <= most


@pytest.mark.parametrize(("most", "queued"), [(11, 11), (10**9, None)], ids=["full", "never full"])
def test_a_queue_is_waited_for_until_nothing_new_comes_and_not_forever(clock_time, most, queued):
    def made():
        return min(most, int(clock_time[0] / 0.2))

    wait_until_full(made, batch_seconds=0.2)
    assert queued in (None, made())
    assert clock_time[0] < (10 if queued is None else 3.5)


@pytest.mark.parametrize(
    ("queued", "begun", "input_rate", "steps"),
    [
        (12, 0, 0.0, 12),
        (12, 0, 50.0, 24),
        (12, 0, 95.0, 36),
        (12, 0, 110.0, 12),
        (0, 0, 95.0, 0),
        (0, 4, 99.0, 4),
        (0, 4, 100.0, 0),
    ],
)
def test_a_queue_drains_more_slowly_than_steps_take_batches_out_of_it(queued, begun, input_rate, steps):
    assert steps_to_drain(queued, begun, input_rate, 100.0) == steps


def test_a_short_step_counts_as_its_share(clock_time):
    """An epoch of 5 batches, of which a call trains on 4: each fifth of a second, a whole call and a quarter of one."""
    clock = StepClock(4 * 8, measure_seconds=2.0)
    for number in range(40):
        clock_time[0] += 0.04 if number % 2 else 0.16
        clock.step_ended(share=0.25 if number % 2 else 1.0)
    assert clock.rate().samples_per_second == pytest.approx(5 * 8 / 0.2, rel=0.05)


def test_the_spread_is_that_of_blocks_not_of_steps():
    ends = itertools.accumulate([0.01, 0.03] * 500)
    assert steady_rate([(end, done) for done, end in enumerate(ends)], 1).spread < 0.02


@pytest.mark.parametrize(("to_beat", "seconds"), [(None, 2.0), (150.0, 0.6), (90.0, 2.0)])
def test_a_run_that_is_surely_too_slow_ends_early(clock_time, to_beat, seconds):
    clock = StepClock(10, measure_seconds=2.0, warm_up=0, enough_spread=0.0, to_beat=to_beat)
    run(clock, clock_time, [0.0] + [0.095, 0.105] * 1000)
    assert clock_time[0] == pytest.approx(seconds, abs=0.3)


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
    concurrent.futures.wait(clock._awaited)
    assert clock.rate().steps >= 31  # of the first few some are noted, further and further apart


def test_a_clock_may_let_few_steps_only_be_under_way():
    waited = []
    clock = StepClock(10, 100.0, warm_up=1, most_ahead=2)
    for number in range(10):
        clock.step_ended(lambda number=number: waited.append(number))
    assert waited == [0, 0, *range(8)]  # the first, the last of the warm-up, and from then on the one two steps ago


def test_a_run_of_known_length_ends_with_its_last_step():
    waited = []
    clock = StepClock(10, 100.0, warm_up=1, steps=4, most_ahead=2)
    for number in range(5):
        clock.step_ended(lambda number=number: waited.append(number))
    assert clock.done
    assert waited[-1] == 4
    assert clock._ends[-1][1] == 5


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
    both, slower, faster = (SteadyRate(rate, 0.1, 0.01, 100) for rate in (1000.0, 900.0, 1500.0))
    assert [ceiling(alone, both) for alone in (slower, faster, None)] == [(1000.0, False), (1500.0, True), (None, False)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.floats(0.001, 2))
def test_a_rate_counts_the_steps_between_the_ends_that_are_known(counts, step_seconds):
    done = list(itertools.accumulate([1, *counts]))
    rate = steady_rate([(count * step_seconds, count) for count in done], 8)
    assert rate.steps == done[-1] - done[0]
    assert rate.samples_per_second == pytest.approx(8 / step_seconds)
