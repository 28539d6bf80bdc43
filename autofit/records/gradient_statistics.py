"""Estimate the gradient noise scale from products of gradients. This module has no side effects.

M microbatches of b samples have mean gradients g_i, in J groups of m; N is the number of samples in the data, if they are
drawn without replacement.

    S    = b (Σ|g_i|² - |Σg_i|²/M) / (M - 1)             the trace of the covariance of single samples' gradients
    |G|² = |Σg_i|²/M² - (S/(M b)) (1 - M b/N)            the squared gradient of the loss on all data
    φ    = S / |G|²                                      the noise scale, in samples

Both S and |G|² are unbiased (McCandlish et al., 2018, appendix A). The interval of φ is from a jackknife over groups:
each is left out in turn, and the logarithms of the remaining φ spread (Efron and Stein, The jackknife estimate of variance,
1981).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.intervals import student_quantile
from autofit.records.noise import Gradients, Metric

LEAST_GROUPS = 8
"""The fewest groups of microbatches whose spread shows an interval."""

NOT_FINITE = "gradients are not finite: the loss is NaN or infinite"
"""The reason why a training that has broken down gives no noise scale."""

ORDERED = (
    "samples that lie together are more alike than others, as in data sorted by class, so their gradients are not "
    "independent; shuffle the samples"
)
"""The reason why gradients of data in an order give no noise scale."""

_LEAST_SHARE = 1e-6  # of |G|²: the noise of samples that are all alike, by rounding of sums in float32
_ALIKE = 0.2  # difference of the logarithms of two noises that may be chance or a small effect (assumed)
_DEVIATIONS = 3.0  # standard deviations between two noises that disagree
_ORDERED_RATIO = 2.0  # noise between groups / noise within them, above which the data is in an order (assumed)
_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """An estimate of the noise scale in samples: its value and its 95 % interval.

    `value` and `high` are None if the gradient does not stand out of its noise; the scale is then at least `low`.
    """

    value: float | None
    low: float
    high: float | None


def scale_of(gradients: Gradients, metric: Metric) -> Scale:
    """Estimate the noise scale from gradients in a metric."""
    (noise, signal), noises, signals = _leaving_out(gradients, metric)
    if noise <= _LEAST_SHARE * gradients.batch_size * signal or (noises <= 0).any():
        return Scale(0.0, 0.0, 0.0)
    quantile = student_quantile(len(signals) - 1)
    half_signal = quantile * _jackknife(signals)
    if signal <= half_signal or (signals <= 0).any():
        drawn = gradients.microbatches * gradients.batch_size
        return Scale(None, noise / max(signal + half_signal, noise / drawn), None)  # at most all that was drawn
    value, half = noise / signal, quantile * _jackknife(np.log(noises / signals))
    return Scale(value, value * math.exp(-half), value * math.exp(half))


def disagree(gradients: Gradients, others: Gradients) -> bool:
    """Return whether the noise of a sample, or the noise scale, is another in batches of another size."""
    one, other = (scale_of(each, Metric.EUCLIDEAN) for each in (gradients, others))
    highest = [math.inf if each.high is None else each.high for each in (one, other)]
    if one.low > highest[1] or other.low > highest[0]:
        return True
    read = [_leaving_out(each, Metric.EUCLIDEAN) for each in (gradients, others)]
    if any(noise <= 0 or (noises <= 0).any() for (noise, _), noises, _ in read):
        return False
    apart = abs(math.log(read[0][0][0] / read[1][0][0]))
    return apart > max(_ALIKE, _DEVIATIONS * math.hypot(*(_jackknife(np.log(noises)) for _, noises, _ in read)))


def is_ordered(gradients: Gradients, metric: Metric) -> bool:
    """Return whether the noise between groups is more than that within them: neighbouring batches are alike.

    In batches that are drawn independently, both are the same, but for a batch with a gradient far larger than all others.
    So the noise must be more whichever group is left out.
    """
    m, products = gradients.group_batches, gradients.by_metric[metric]
    squares = np.array(products.squares, float)
    matrix, groups = np.array(products.products, float), len(products.squares)
    if m < 2 or groups < LEAST_GROUPS:
        return False
    norms, left = matrix.diagonal(), groups - 1
    without = matrix.sum() - 2 * matrix.sum(1) + norms
    within = (squares.sum() - squares - (norms.sum() - norms) / m) / (left * (m - 1))
    between = (norms.sum() - norms - without / left) / (m * (left - 1))
    return bool((between > _ORDERED_RATIO * within).all())


def _leaving_out(gradients: Gradients, metric: Metric) -> tuple[tuple[float, float], _Vector, _Vector]:
    """Return S and |G|² of all groups, and of all but one."""
    products = gradients.by_metric[metric]
    groups, matrix, squares = len(products.squares), np.array(products.products, float), np.array(products.squares, float)
    rests = squares.sum() - squares, matrix.sum() - 2 * matrix.sum(1) + matrix.diagonal()
    without = [_moments(gradients, float(q), float(s), groups - 1) for q, s in zip(*rests, strict=True)]
    noises, signals = (np.array(each, float) for each in zip(*without, strict=True))
    return _moments(gradients, float(squares.sum()), float(matrix.sum()), groups), noises, signals


def _moments(gradients: Gradients, squares: float, square: float, groups: int) -> tuple[float, float]:
    """Return S and |G|² from the sum of |g|² and the square of the sum of g, over a number of groups."""
    count = groups * gradients.group_batches
    noise = gradients.batch_size * (squares - square / count) / (count - 1)
    drawn = count * gradients.batch_size
    left = 1.0 if gradients.samples is None else max(0.0, 1 - drawn / gradients.samples)
    return noise, square / count**2 - noise / drawn * left


def _jackknife(values: _Vector) -> float:
    """Return the standard deviation of an estimate from the values with one group left out each."""
    count = len(values)
    return math.sqrt((count - 1) / count * float(np.square(values - values.mean()).sum()))
