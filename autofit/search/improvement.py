"""Expected improvement of the rate, and the choice among configs that tie for it. Pure.

It is that of the logarithm of the rate over the best rate so far (Jones, Schonlau and Welch, Efficient global optimization
of expensive black-box functions, 1998).
"""

from __future__ import annotations

import math

import numpy as np

from autofit.search.config_arrays import Mask, Vector
from autofit.search.surrogate.throughput import RatePrediction

_TIE_RATIO = 0.1  # expected improvements within it are ties: the cheaper config is taken


def expected_improvement(predicted: RatePrediction, best: float) -> Vector:
    """Expected improvement of each config's log rate over `best`; falling short counts as 0."""
    from scipy.special import ndtr  # a quarter of a second to load, which a stored result does not need

    gain = predicted.mean - best
    z = gain / np.maximum(predicted.deviation, 1e-9)
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return np.asarray(gain * ndtr(z) + predicted.deviation * density)


def cheapest(improvement: Vector, candidates: Mask, share: Vector) -> int:
    """Of the candidates that tie for the highest expected improvement, the cheapest with the least memory, in tenths."""
    indices = np.flatnonzero(candidates & (improvement >= (1 - _TIE_RATIO) * improvement[candidates].max()))
    return int(indices[np.argmin(np.round(10 * share[indices]))])
