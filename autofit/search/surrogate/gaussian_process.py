"""What a fitted form leaves over: Gaussian-process regression with fixed scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


class Residual:
    """A zero-mean Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1).

    It is the sum of independent parts, each with a squared-exponential covariance over coordinates of its own.

    Args:
        amplitudes: standard deviation of each part.
        places: for each part (n, d) coordinates in units of its length scales.
        left: (n,) what the form left over.
        noise: (n,) standard deviation of each.
    """

    def __init__(self, amplitudes: Sequence[float], places: Sequence[Matrix], left: Matrix, noise: Matrix) -> None:
        self._amplitudes, self._places = amplitudes, places
        covariance = self._covariance(places) + np.diag(np.square(noise))
        self._root = np.linalg.cholesky(covariance)
        self._weights = np.linalg.solve(covariance, left)

    def predict(self, places: Sequence[Matrix]) -> tuple[Matrix, Matrix]:
        """Mean and standard deviation of the process, for each part (m, d) coordinates."""
        near = self._covariance(places)
        spread = np.linalg.solve(self._root, near.T)
        variance = sum(a**2 for a in self._amplitudes) - np.square(spread).sum(0)
        return near @ self._weights, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, places: Sequence[Matrix]) -> Matrix:
        """Between new places and those that the process is fitted to."""
        total = np.zeros((len(places[0]), len(self._places[0])))
        for amplitude, new, old in zip(self._amplitudes, places, self._places, strict=True):
            squares = np.square(new).sum(1)[:, None] + np.square(old).sum(1) - 2 * new @ old.T
            total += amplitude**2 * np.exp(-0.5 * np.maximum(squares, 0.0))
        return total
