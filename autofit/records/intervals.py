"""Confidence intervals of the mean of a few readings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from autofit.records import confidence


def pooled_half_width(values: Sequence[float], *others: Sequence[float]) -> float:
    """Return the half-width of the confidence interval of the mean of readings.

    It is Student's interval. The scatter is that of all series, because two readings alone tell
    little about theirs; `others` are assumed to scatter as much as `values`. The half-width is
    infinite if no series has two readings.
    """
    series = (values, *others)
    freedom = sum(len(one) - 1 for one in series if one)
    if not freedom:
        return math.inf
    squares = sum(
        (len(one) - 1) * statistics.variance(one) for one in series if len(one) > 1
    )
    return _student(freedom) * math.sqrt(squares / freedom / len(values))


def welch_interval(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float]:
    """Return the difference of the means of two series, and the half-width of its interval.

    Both have the same length. It is Welch's interval (B. L. Welch, The generalization of
    "Student's" problem, 1947), because the readings of one series may scatter more than those of
    the other. The half-width for single readings is infinite.
    """
    difference = statistics.fmean(first) - statistics.fmean(second)
    count = len(first)
    if count < 2:
        return difference, math.inf
    squares = [statistics.variance(series) / count for series in (first, second)]
    total = sum(squares)
    if not total:
        return difference, 0.0
    freedom = total**2 * (count - 1) / sum(square**2 for square in squares)
    return difference, _student(freedom) * math.sqrt(total)


def _student(freedom: float) -> float:
    """Return how many standard errors Student's t distribution has on either side."""
    return float(stdtrit(freedom, confidence.upper_quantile()))
