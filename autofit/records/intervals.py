"""Confidence intervals of means of a few readings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

_UPPER_QUANTILE = 0.975  # of a two-sided 95 % interval


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of independent readings and the half-width of its 95 % confidence interval (Student's t).

    The half-width of a single reading is infinite.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    t = float(stdtrit(len(values) - 1, _UPPER_QUANTILE))
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))
