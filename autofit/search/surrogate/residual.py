"""Model what a parametric model leaves over, with Gaussian processes whose amplitudes are unknown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.search.config_arrays import Matrix, Vector

_AMPLITUDE_RATIO = 2.0  # between neighbouring amplitudes that are tried
_AMPLITUDE_DEVIATIONS = 2.0  # how far amplitudes are tried from the prior median


@dataclass(frozen=True)
class Amplitude:
    """The prior of an amplitude, which is lognormal: its median, and the standard deviation of its logarithm."""

    median: float
    deviation: float

    def tried(self) -> list[float]:
        """Return the amplitudes to average over, from the lowest."""
        step = math.log(_AMPLITUDE_RATIO)
        count = round(_AMPLITUDE_DEVIATIONS * self.deviation / step)
        return [self.median * _AMPLITUDE_RATIO**power for power in range(-count, count + 1)]

    def log_prior(self, amplitude: float) -> float:
        """Return the logarithm of the prior density over the logarithm of the amplitude, up to a constant."""
        return -0.5 * (math.log(amplitude / self.median) / self.deviation) ** 2


class Residual:
    """Zero-mean Gaussian processes with several amplitudes, averaged with their posterior weights.

    Each is the sum of independent parts (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1).
    A part has an `Amplitude` (the prior of its standard deviation) and a squared-exponential covariance over its own
    `points`, which have shape (n, d) and are in units of its length scales. `residuals` are observed minus fitted values,
    and `noise` their standard deviations, both of shape (n,).
    """

    def __init__(self, priors: Sequence[Amplitude], points: Sequence[Matrix], residuals: Vector, noise: Vector) -> None:
        tried = list(itertools.product(*(prior.tried() for prior in priors)))
        self._variances = np.square(tried)  # of the parts, of shape (processes, parts)
        self._points = points
        covariance = self._covariance(points) + np.diag(np.square(noise))
        self._root = np.linalg.cholesky(covariance)
        self._solved = np.linalg.solve(covariance, residuals[:, None])
        log_determinant = np.log(np.diagonal(self._root, axis1=1, axis2=2)).sum(1)
        logs = -0.5 * (residuals @ self._solved)[:, 0] - log_determinant
        logs += [sum(p.log_prior(one) for p, one in zip(priors, amplitudes, strict=True)) for amplitudes in tried]
        weights = np.exp(logs - logs.max())
        self._weights = weights / weights.sum()

    def predict(self, points: Sequence[Matrix]) -> tuple[Vector, Vector]:
        """Predict mean and standard deviation at new points; `points` has coordinates of shape (m, d) for each part."""
        covariance = self._covariance(points)
        explained = np.linalg.solve(self._root, np.swapaxes(covariance, 1, 2))
        variances = np.maximum(self._variances.sum(1)[:, None] - np.square(explained).sum(1), 0.0)
        means = (covariance @ self._solved)[..., 0]
        mean = self._weights @ means
        return mean, np.sqrt(self._weights @ (variances + np.square(means - mean)))

    def _covariance(self, points: Sequence[Matrix]) -> Matrix:
        """Return each process's covariance between new points and the fitted ones, of shape (processes, m, n)."""
        parts = []
        for new, old in zip(points, self._points, strict=True):
            squares = np.square(new).sum(1)[:, None] + np.square(old).sum(1) - 2 * new @ old.T
            parts.append(np.exp(-0.5 * np.maximum(squares, 0.0)))
        return np.asarray(np.tensordot(self._variances, np.stack(parts), 1))
