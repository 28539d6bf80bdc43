import math

import pytest

from autofit.records.intervals import pooled_half_width
from autofit.records.units import (
    counted,
    format_bytes,
    format_rate,
    format_seconds,
    format_spread,
)


def test_the_interval_of_three_readings_is_students():
    assert pooled_half_width([5.0]) == math.inf
    assert pooled_half_width([1.0, 2.0, 3.0]) == pytest.approx(
        4.303 / math.sqrt(3), rel=1e-4
    )


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
