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


def run(clock, now, durations):
    for duration in durations:
        now[0] += duration
        clock.step_ended()
        if clock.done:
            return


@given(st.floats(0.001, 2), st.integers(2, 200), st.integers(1, 512))
def test_equal_steps_give_their_rate(step_seconds, steps, batch):
    ends = [(done * step_seconds, done) for done in range(steps + 1)]
    rate = steady_rate(ends, batch)
    assert rate.samples_per_second == pytest.approx(batch / step_seconds)
    assert rate.steps == steps


@pytest.mark.parametrize(("warm_up_seconds", "counted"), [(0.0, 58), (0.495, 9), (5.0, 0)])
def test_a_gpu_has_time_to_reach_its_clock(clock_time, warm_up_seconds, counted):
    clock = StepClock(8, 100.0, warm_up_seconds=warm_up_seconds)
    run(clock, clock_time, [0.01] * 60)
    if counted:
        assert clock.rate().steps == counted
    else:
        with pytest.raises(ValueError, match="at least two steps"):
            clock.rate()


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


def test_slow_first_steps_are_not_counted(clock_time):
    clock = StepClock(10, measure_seconds=2.0, warm_up=3)
    run(clock, clock_time, [5.0, 0.2, 0.2] + [0.1] * 100)
    assert clock.rate().samples_per_second == pytest.approx(100)


def test_a_warm_up_of_slow_steps_is_cut_short(clock_time):
    clock = StepClock(10, measure_seconds=2.0, warm_up=6)
    run(clock, clock_time, [9.0, 2.0, 1.0, 1.0, 1.0])
    assert clock.done
    assert clock.rate().steps == 3


def test_batches_that_arrive_together_count_as_whole_rounds(clock_time):
    """Four workers whose batches arrive at the same time, every 1.2 s."""
    clock = StepClock(10, measure_seconds=3.0, warm_up=2, prefilled=2, round_steps=4)
    run(clock, clock_time, [0.5, 0.5, 0.0, 0.0, *[1.2, 0.0, 0.0, 0.0] * 4])
    assert clock.rate().samples_per_second == pytest.approx(4 * 10 / 1.2)
    assert clock.rate().steps == 8


def test_steps_after_the_end_do_not_count(clock_time):
    clock = StepClock(10, measure_seconds=2.0, warm_up=2)
    run(clock, clock_time, [0.1, 0.1, 1.0, 1.0, 1.0, *[0.001] * 50])
    assert clock.done
    assert clock.rate().samples_per_second == pytest.approx(10)


def test_what_a_full_queue_held_is_not_counted(clock_time):
    stalls = []
    clock = StepClock(10, measure_seconds=2.0, warm_up=2, prefilled=5, stall=lambda: stalls.append(clock_time[0]))
    run(clock, clock_time, [1.0, 0.1] + [0.01] * 5 + [0.1] * 100)
    assert stalls == [pytest.approx(1.1)]
    assert clock.rate().samples_per_second == pytest.approx(100)


def test_a_steady_run_ends_early_and_a_noisy_one_at_its_time(clock_time):
    steady, noisy = StepClock(1, measure_seconds=5.0), StepClock(1, measure_seconds=5.0)
    run(steady, clock_time, [0.05] * 1000)
    assert steady.rate().spread <= 0.02
    assert steady.rate().steps * 0.05 < 2.0
    run(noisy, clock_time, [0.05, 0.05, *([0.05] * 4 + [0.4]) * 100])
    assert noisy.rate().steps * noisy.rate().step_seconds >= 5.0


@pytest.mark.parametrize(("to_beat", "seconds"), [(None, 2.0), (150.0, 0.6), (90.0, 2.0)])
def test_a_run_that_is_surely_too_slow_ends_early(clock_time, to_beat, seconds):
    clock = StepClock(10, measure_seconds=2.0, warm_up=0, enough_spread=0.0, to_beat=to_beat)
    run(clock, clock_time, [0.0] + [0.095, 0.105] * 1000)
    assert clock_time[0] == pytest.approx(seconds, abs=0.3)


def test_a_run_of_known_length_ends_with_it(clock_time):
    clock = StepClock(1, measure_seconds=0.1, warm_up=2, steps=40)
    run(clock, clock_time, [0.05] * 41)
    assert not clock.done
    run(clock, clock_time, [0.05])
    assert clock.done
    assert clock.rate().steps == 40


def test_a_confirming_run_takes_all_of_its_time(clock_time):
    clock = StepClock(1, measure_seconds=5.0, enough_spread=0.0)
    run(clock, clock_time, [0.05] * 1000)
    assert clock.rate().steps * 0.05 >= 5.0


def test_a_queue_is_full_when_nothing_new_comes(clock_time):
    def made():
        return min(11, int(clock_time[0] / 0.2))

    wait_until_full(made, batch_seconds=0.2)
    assert made() == 11
    assert clock_time[0] < 3.5


def test_a_pipeline_that_never_stops_is_not_waited_for_forever(clock_time):
    wait_until_full(lambda: int(clock_time[0] / 0.1), batch_seconds=0.1)
    assert clock_time[0] < 10


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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_rate_counts_the_steps_between_the_ends_that_are_known(counts, step_seconds):
    done = list(itertools.accumulate([1, *counts]))
    rate = steady_rate([(count * step_seconds, count) for count in done], 8)
    assert rate.steps == done[-1] - done[0]
    assert rate.samples_per_second == pytest.approx(8 / step_seconds)


def test_quick_steps_are_compared_once_a_block(clock_time, monkeypatch):
    compared = []
    monkeypatch.setattr(step_clock, "steady_rate", lambda *given: compared.append(1) or steady_rate(*given))
    clock = StepClock(8, 3.0, enough_spread=0.0)
    run(clock, clock_time, [0.001] * 5000)
    assert clock.done
    assert 15 <= len(compared) <= 20  # 3 s of blocks of 0.15 s


@pytest.mark.parametrize(
    ("input_rate", "compute_rate", "steps"),
    [(0.0, 100.0, 12), (50.0, 100.0, 24), (64.0, 128.0, 24), (95.0, 100.0, 36), (110.0, 100.0, 12)],
)
def test_a_queue_drains_more_slowly_than_steps_take_batches_out_of_it(input_rate, compute_rate, steps):
    assert steps_to_drain(12, 0, input_rate, compute_rate) == steps
    assert steps_to_drain(0, 0, input_rate, compute_rate) == 0


@pytest.mark.parametrize(("input_rate", "steps"), [(0.0, 4), (99.0, 4), (100.0, 0), (1000.0, 0)])
def test_batches_that_are_being_made_count_if_steps_wait_for_them(input_rate, steps):
    assert steps_to_drain(0, 4, input_rate, 100.0) == steps


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
