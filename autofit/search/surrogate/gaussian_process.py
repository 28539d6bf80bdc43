"""Gaussian-process regression with fixed scales, for the residuals of a parametric fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofit.search.config_arrays import Matrix


class Residual:
    """A zero-mean Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1).

    It is the sum of independent parts, each with a squared-exponential covariance over coordinates of its own.

    Args:
        amplitudes: standard deviation of each part.
        points: for each part (n, d) coordinates in units of its length scales.
        residuals: (n,) observed minus fitted values.
        noise: (n,) standard deviation of each residual.
    """

    def __init__(self, amplitudes: Sequence[float], points: Sequence[Matrix], residuals: Matrix, noise: Matrix) -> None:
        self._amplitudes, self._points = amplitudes, points
        covariance = self._covariance(points) + np.diag(np.square(noise))
        self._root = np.linalg.cholesky(covariance)
        self._weights = np.linalg.solve(covariance, residuals)

    def predict(self, points: Sequence[Matrix]) -> tuple[Matrix, Matrix]:
        """Mean and standard deviation of the process at new points: for each part (m, d) coordinates."""
        covariance = self._covariance(points)
        explained = np.linalg.solve(self._root, covariance.T)
        variance = sum(a**2 for a in self._amplitudes) - np.square(explained).sum(0)
        return covariance @ self._weights, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, points: Sequence[Matrix]) -> Matrix:
        """Between new points and those that the process is fitted to."""
        total = np.zeros((len(points[0]), len(self._points[0])))
        for amplitude, new, old in zip(self._amplitudes, points, self._points, strict=True):
            squares = np.square(new).sum(1)[:, None] + np.square(old).sum(1) - 2 * new @ old.T
            total += amplitude**2 * np.exp(-0.5 * np.maximum(squares, 0.0))
        return total
