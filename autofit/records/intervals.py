"""Confidence intervals of means of a few readings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# 97.5 % quantiles of Student's t by degrees of freedom (any table of it); between two entries the wider one holds
_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
          15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000}  # fmt: skip


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of independent readings and the half-width of its 95 % confidence interval (Student's t).

    The half-width of a single reading is infinite.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    freedom = len(values) - 1
    t = _T_975[max(k for k in _T_975 if k <= freedom)]
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))
