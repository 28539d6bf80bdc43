"""Bayesian linear regression with relative noise, lower bounds on coefficients and censored points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.search.config_arrays import Matrix, Vector

_IMPUTATIONS = 30  # rounds in which censored points are imputed; about ten suffice to converge
_LEAST_TAIL = 1e-12  # below this tail probability, the inverse Mills ratio is too inaccurate
_NORMAL_CONSTANT = math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Point:
    """One observation: `value` at `features`.

    If `at_least` is true, the observation is censored: its true value is higher. `noise` multiplies the model's noise.
    """

    features: tuple[float, ...]
    value: float
    at_least: bool = False
    noise: float = 1.0


class LinearModel:
    """A linear model: value = features · coefficients.

    Each coefficient has a Gaussian prior, and the noise is relative to the value. The fit is a conjugate update (Bishop,
    Pattern Recognition and Machine Learning, 3.3). A coefficient that would fall below its floor is held at the floor, and
    the others are fitted again. A censored point is replaced by the mean of that part of its predictive distribution which
    lies above the observed value (the E step of a Tobit regression).

    `mean`, `deviation` and `floor` (-inf for none) have a value for each coefficient; `noise` is the relative standard
    deviation of an observation.
    """

    def __init__(
        self,
        mean: Sequence[float],
        deviation: Sequence[float],
        points: Sequence[Point],
        noise: float,
        floor: Sequence[float],
    ) -> None:
        self._prior, self._floor = np.array(mean, float), np.array(floor, float)
        self.noise = noise
        self._precision = np.diag(1 / np.square(np.array(deviation, float)))
        observed = [p for p in points if not p.at_least]
        censored = [p for p in points if p.at_least]
        self._fit(observed)
        for _ in range(_IMPUTATIONS if censored else 0):
            imputed = [Point(p.features, self._mean_above(p), noise=p.noise) for p in censored]
            self._fit([*observed, *imputed])

    def predict(self, rows: Matrix) -> tuple[Vector, Vector]:
        """Predict the expected value and the standard deviation, including noise, for each row of features."""
        mean = rows @ self._mean
        return mean, np.sqrt(np.einsum("ij,jk,ik->i", rows, self._covariance, rows) + np.square(self.noise * mean))

    def _fit(self, points: Sequence[Point]) -> None:
        rows = np.array([p.features for p in points], float).reshape(len(points), len(self._prior))
        values = np.array([p.value for p in points], float)
        noise = self.noise * np.array([p.noise for p in points], float)
        weights = 1 / np.square(noise * np.maximum(values, 1.0))
        precision = self._precision + rows.T @ (weights[:, None] * rows)
        target = self._precision @ self._prior + rows.T @ (weights * values)
        self._covariance = np.linalg.inv(precision)
        held: list[int] = []
        while True:
            free = [i for i in range(len(target)) if i not in held]
            mean = self._floor.copy()
            if free:
                rest = target[free] - precision[np.ix_(free, held)] @ self._floor[held]
                mean[free] = np.linalg.solve(precision[np.ix_(free, free)], rest)
            low = [i for i in free if mean[i] < self._floor[i]]
            if not low:
                break
            held += low
        self._mean: Vector = mean

    def _mean_above(self, point: Point) -> float:
        """Return the mean of the predictive distribution above the point's value, from the inverse Mills ratio."""
        (mean,), (deviation,) = self.predict(np.array([point.features]))
        distance = (point.value - mean) / deviation
        tail = 0.5 * math.erfc(distance / math.sqrt(2))
        if tail < _LEAST_TAIL:
            return point.value * (1 + self.noise)
        return float(mean + deviation * math.exp(-(distance**2) / 2) / _NORMAL_CONSTANT / tail)
