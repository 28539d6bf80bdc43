import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.records.intervals import pooled_half_width
from autofit.records.units import counted, format_bytes, format_rate, format_seconds, format_spread


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=100), st.floats(0.1, 10))
def test_the_interval_scales_with_the_readings(values, factor):
    scaled = pooled_half_width([factor * v for v in values])
    assert scaled == pytest.approx(factor * pooled_half_width(values), rel=1e-6, abs=1e-6 * max(values) * factor)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(1536), "1.50 KiB"),
        (format_bytes(3 * 2**40), "3.00 TiB"),
        (format_rate(12345.6), "12,346"),
        (format_spread(0.031), "±3%"),
        (format_spread(2.4), "±100% or more"),  # of one reading, too
        (format_seconds(65), "1 min 05 s"),
        (format_seconds(7380), "2 h 03 min"),
        (counted(2, "process"), "2 processes"),
    ],
)
def test_quantities_are_written_as_people_do(text, expected):
    assert text == expected
