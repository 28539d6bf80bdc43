"""Expected improvement, and the choice among configs that tie for it. Pure.

It is that of the logarithm of a rate (Jones, Schonlau and Welch, Efficient global optimization of expensive black-box
functions, 1998).
"""

from __future__ import annotations

import math

import numpy as np

from autofit.search.config_arrays import Mask, Vector

_TIE_RATIO = 0.1  # expected improvements within it are ties: the cheaper config is taken


def expected_improvement(lead: Vector, deviation: Vector, least: float = 0.0) -> Vector:
    """Expected improvement by leads of which each is normal; one below `least` is not taken, and counts as 0.

    Args:
        lead: expected leads over the best, in log rate.
        deviation: their standard deviations.
        least: the smallest lead that is an improvement, in log rate.
    """
    from scipy.special import ndtr  # a quarter of a second to load, which a stored result does not need

    z = (lead - least) / np.maximum(deviation, 1e-9)
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return np.asarray(lead * ndtr(z) + deviation * density)


def cheapest(improvement: Vector, candidates: Mask, share: Vector) -> int:
    """Of the candidates that tie for the highest expected improvement, the cheapest with the least memory, in tenths."""
    indices = np.flatnonzero(candidates & (improvement >= (1 - _TIE_RATIO) * improvement[candidates].max()))
    return int(indices[np.argmin(np.round(10 * share[indices]))])
