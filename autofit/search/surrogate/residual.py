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


class GaussianProcess:
    """A zero-mean Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1).

    It is the sum of independent parts. Each has an amplitude (its standard deviation) and a squared-exponential
    covariance over its own `points`, which have shape (n, d) and are in units of its length scales.
    `residuals` are observed minus fitted values, and `noise` their standard deviations, both of shape (n,).
    """

    def __init__(self, amplitudes: Sequence[float], points: Sequence[Matrix], residuals: Vector, noise: Vector) -> None:
        self._amplitudes, self._points = amplitudes, points
        covariance = self._covariance(points) + np.diag(np.square(noise))
        self._root = np.linalg.cholesky(covariance)
        self._weights = np.linalg.solve(covariance, residuals)
        self.log_likelihood = float(-0.5 * residuals @ self._weights - np.log(np.diag(self._root)).sum())  # + a constant

    def predict(self, points: Sequence[Matrix]) -> tuple[Vector, Vector]:
        """Predict mean and variance at new points; `points` has coordinates of shape (m, d) for each part."""
        covariance = self._covariance(points)
        explained = np.linalg.solve(self._root, covariance.T)
        variance = sum(a**2 for a in self._amplitudes) - np.square(explained).sum(0)
        return covariance @ self._weights, np.maximum(variance, 0.0)

    def _covariance(self, points: Sequence[Matrix]) -> Matrix:
        """Return the covariance between new points and the points that the process is fitted to."""
        total = np.zeros((len(points[0]), len(self._points[0])))
        for amplitude, new, old in zip(self._amplitudes, points, self._points, strict=True):
            squares = np.square(new).sum(1)[:, None] + np.square(old).sum(1) - 2 * new @ old.T
            total += amplitude**2 * np.exp(-0.5 * np.maximum(squares, 0.0))
        return total


class Residual:
    """Gaussian processes with several amplitudes, averaged with their posterior weights; one `Amplitude` for each part."""

    def __init__(self, priors: Sequence[Amplitude], points: Sequence[Matrix], residuals: Vector, noise: Vector) -> None:
        tried = list(itertools.product(*(prior.tried() for prior in priors)))
        self._processes = [GaussianProcess(amplitudes, points, residuals, noise) for amplitudes in tried]
        logs = np.array(
            [
                process.log_likelihood + sum(prior.log_prior(one) for prior, one in zip(priors, amplitudes, strict=True))
                for process, amplitudes in zip(self._processes, tried, strict=True)
            ]
        )
        weights = np.exp(logs - logs.max())
        self._weights = weights / weights.sum()

    def predict(self, points: Sequence[Matrix]) -> tuple[Vector, Vector]:
        """Predict mean and standard deviation at new points; `points` has coordinates of shape (m, d) for each part."""
        predicted = [process.predict(points) for process in self._processes]
        means, variances = (np.array(each) for each in zip(*predicted, strict=True))
        mean = self._weights @ means
        return mean, np.sqrt(self._weights @ (variances + np.square(means - mean)))
