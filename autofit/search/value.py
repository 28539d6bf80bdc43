"""What one more run is worth: how much faster what would be delivered after it is expected to be.

A run of a new config and another run of one that has run compete by this one figure. It is the
knowledge gradient (Frazier, Powell and Dayanik, The knowledge-gradient policy for correlated normal
beliefs, 2009): a reading moves all predicted rates by their covariance with the config that was
read. Because one noisy reading alone hardly ever decides, a run is valued as if some readings
followed it (Frazier and Powell, Paradoxes in learning and the marginal value of information, 2010).
"""

from __future__ import annotations

import numpy as np

from autofit.search.context import Indices, Matrix, Vector
from autofit.search.rates import Prediction

LIKELY = 0.7  # probability of being faster with which a config replaces another
# readings that a run stands for (assumed; whole tunes deliver 0.01 more with 3 than with 1)
_READINGS = 4
# nodes and weights of a mean over a standard Gaussian
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


def worth(
    rates: Prediction, ran: Indices, options: Indices, replaced: int | None
) -> Vector:
    """Return what a run of each option adds to the log rate of what is delivered.

    `ran` are the configs that may be delivered without a further run, and `replaced` is the one
    that stays unless another is likely to be faster; without it, the one with the highest predicted
    rate is delivered.
    """
    from scipy.special import ndtri  # loading takes a quarter of a second

    if replaced is None:
        reference = int(ran[np.argmax(rates.mean[ran])])
        least = 0.0
    else:
        reference = replaced
        least = float(ndtri(LIKELY))
    noise = rates.noise / np.sqrt(_READINGS)
    reading = np.sqrt(np.square(rates.deviation[options]) + np.square(noise))
    at_reference = rates.covariance(np.array([reference]), options)[0] / reading

    def delivered(moved: Matrix, lead: Vector, deviation: Matrix) -> Matrix:
        leads = lead[..., None] + moved[..., None] * _NODES
        left = np.sqrt(np.maximum(np.square(deviation) - np.square(moved), 0.0))
        return np.where(leads >= least * left[..., None], np.maximum(leads, 0.0), 0.0)

    leads, deviations = rates.lead_over(reference)
    is_likely = leads[ran] >= least * deviations[ran]
    now = np.max(leads[ran], where=is_likely, initial=0.0)
    moved = rates.covariance(ran, options) / reading - at_reference
    of_others = delivered(moved, leads[ran][:, None], deviations[ran][:, None]).max(0)
    moved = np.square(rates.deviation[options]) / reading - at_reference
    of_itself = delivered(moved, leads[options], deviations[options])
    mean = np.maximum(of_others, of_itself) @ _WEIGHTS / _WEIGHTS.sum()
    return np.asarray(mean - now)
