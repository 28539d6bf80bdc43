import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.records.intervals import mean_interval
from autofit.records.units import counted, format_bytes, format_rate, format_seconds, format_spread


def test_the_interval_of_three_readings_is_students():
    mean, half_width = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)


def test_one_reading_says_nothing_of_its_spread():
    assert mean_interval([5.0]) == (5.0, math.inf)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=100), st.floats(0.1, 10))
def test_the_interval_scales_with_the_readings(values, factor):
    mean, half_width = mean_interval(values)
    scaled_mean, scaled_half_width = mean_interval([factor * v for v in values])
    assert scaled_mean == pytest.approx(factor * mean)
    assert scaled_half_width == pytest.approx(factor * half_width, rel=1e-6, abs=1e-6 * mean * factor)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1536, "1.50 KiB"), (64 * 2**20, "64.0 MiB"), (3 * 2**40, "3.00 TiB")]
)
def test_bytes_have_three_digits_and_a_unit(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("rate", "text"), [(12345.6, "12,346"), (10, "10"), (0.534, "0.53"), (3.0, "3")])
def test_rates_below_ten_keep_two_digits(rate, text):
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("spread", "text"), [(0.031, "±3%"), (0.995, "±100%"), (5.4, "runs differ too much for an interval")]
)
def test_a_spread_beyond_its_rate_is_a_factor(spread, text):
    assert format_spread(spread) == text


@pytest.mark.parametrize(("seconds", "text"), [(4.21, "4.2 s"), (42, "42 s"), (65, "1 min 05 s"), (7380, "2 h 03 min")])
def test_seconds_are_written_as_people_do(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "trial", "0 trials"), (1, "trial", "1 trial"), (1200, "trial", "1,200 trials"), (2, "process", "2 processes")],
)
def test_a_count_and_its_noun(count, noun, text):
    assert counted(count, noun) == text
