"""Predict device memory with a model fitted to trials: peak = c·E(b) + V + k·b.

b is the batch size. E is the estimate from the graph of the train step; it is piecewise linear through the footprints of a
few batch sizes, so it follows the jumps of the true curve. The prior of c is near 1, and those of V and k are near 0.
Without an estimate, peak = V + k·b. An OOM is a censored point: its true value is above the limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from autofit.records.description import Description, Footprint
from autofit.records.states import Outcome
from autofit.search.config_arrays import ConfigArrays, Matrix, Vector
from autofit.search.context import Observations, SearchContext
from autofit.search.surrogate.bayesian_linear import LinearModel, Point

# relative noises of a device peak: on a CPU from run to run, if XLA has laid out the step's buffers, and if operations
# overlap by chance (tests/benchmarks/memory.py); on a GPU around the line of the peaks (tests/benchmarks/device_peaks.py)
_COMPILED_NOISE = 0.02
_OVERLAPPING_NOISE = 0.06
_GPU_NOISE = 0.03
_GPU_JUMP = 0.04  # relative deviation beyond the largest batch that ran, where cuDNN may take another algorithm
_FEWEST_TO_SCATTER = 3  # fewest measured peaks that show a scatter: a line goes through any two
_IMPLAUSIBLE_ERROR = 0.25  # relative: an estimate with a larger error describes another computation
_ERROR_SPLIT = (0.3, 2.0, 0.3)  # prior deviations of c, V and k per error (tuned on tests/benchmarks/memory.py)
_GPU_CONSTANT_BYTES = 2 * 2**30  # the most that an estimate lacks: context, workspaces (measured by others on an A100)
_NO_FLOOR = -math.inf


class DeviceModel:
    """Predicts device memory from the estimate and the trials.

    `is_known` is False if there is neither an estimate nor an observation.
    """

    def __init__(self, context: SearchContext, observations: Observations) -> None:
        self._context, self._observations = context, observations
        self._footprints = context.description.footprints
        self._peaks: list[tuple[int, float]] = []  # batch size and bytes of each finished trial
        points, limit_bytes = list[Point](), context.limits.device_bytes
        for trial, noise in observations.with_noise:
            measured, features = trial.measurement, tuple(self._features(ConfigArrays.of([trial.config]))[0])
            if measured.outcome is Outcome.OK and measured.device_peak_bytes is not None:
                points.append(Point(features, float(measured.device_peak_bytes), noise=noise))
                self._peaks.append((trial.config.batch_size or 1, float(measured.device_peak_bytes)))
            elif measured.outcome is Outcome.DEVICE_OOM and limit_bytes is not None:
                points.append(Point(features, float(limit_bytes), at_least=True))
        ooms = [(np.array([point.features[2]]), point.value) for point in points if point.at_least]
        # whether an OOM shows that the memory rises above every line through the peaks
        self._jumps = any(_highest_affine(self._peaks, batch)[0] < limit for batch, limit in ooms)
        self._model = self._fitted(points) if points else None
        self.is_known = bool(points or self._footprints)

    def predict(self, configs: ConfigArrays, deviations: float) -> tuple[Vector, Vector]:
        """Predict expected values and upper bounds in bytes; 0 if nothing is known.

        The upper bounds lie `deviations` standard deviations above the expected values.
        """
        if self._model is None:
            if not self._footprints:
                return np.zeros(len(configs)), np.zeros(len(configs))
            estimated = estimates(self._footprints, configs.batch)
            first = self._footprints[0]
            errors = np.maximum(first.relative_error * estimated, first.absolute_error_bytes)
            return estimated, estimated + deviations / 2 * errors
        jump = 0.0 if self._context.on_cpu else _GPU_JUMP
        expected, upper = self._observations.bounded(self._model, self._features(configs), configs.batch, deviations, jump)
        if self._footprints:
            return expected, np.maximum(upper, self._scaled_estimate(configs.batch))
        highest = _highest_affine(self._peaks, configs.batch)
        if self._jumps:
            highest = np.where(configs.batch > max(size for size, _ in self._peaks), np.inf, highest)
        noise = math.hypot(self._model.noise, jump)
        return np.minimum(expected, highest), np.minimum(upper, highest * (1 + deviations * noise))

    def _scaled_estimate(self, batch: Vector) -> Vector:
        """Return the estimate scaled by the measured/estimated ratio of the only batch size run so far; 0 if several ran.

        A single peak does not show whether the estimate is too low by a constant or by a factor.
        """
        if len({size for size, _ in self._peaks}) != 1:
            return np.zeros(len(batch))
        size, peak = self._peaks[0]
        proportion = peak / max(1.0, float(estimates(self._footprints, np.array([size]))[0]))
        return np.asarray(estimates(self._footprints, batch) * max(1.0, proportion))

    @property
    def _peak_noise(self) -> float:
        """The relative noise of a measured peak; it depends on how memory is allocated, not on the estimate."""
        if not self._context.on_cpu:
            return _GPU_NOISE
        return _COMPILED_NOISE if self._context.description.jit_compile else _OVERLAPPING_NOISE

    def _fitted(self, points: Sequence[Point]) -> LinearModel:
        if self._footprints:
            first, last = self._footprints[0], self._footprints[-1]
            error = first.relative_error / 2  # 95% lie within two standard deviations
            rise = (last.device_bytes - first.device_bytes) / max(1, last.batch_size - first.batch_size)
            errors = (error, max(1.0, first.error_bytes(first.device_bytes) / 2), error * (max(rise, 0.0) + 1.0))
            deviations = [share * one for share, one in zip(_ERROR_SPLIT, errors, strict=True)]
            if not self._context.on_cpu:
                deviations[:2] = error, max(deviations[1], _GPU_CONSTANT_BYTES / 2)
            means, floors = [self._correction(points), 0.0, 0.0], [0.0, _NO_FLOOR, 0.0]
        else:
            description = self._context.description
            variables = float(2 * description.parameter_bytes + description.optimizer_bytes)
            highest = max(1.0, *(point.value for point in points))  # an allocator may count 0 bytes for small tensors
            steepest = max(1.0, *(point.value / (point.features[2] or 1.0) for point in points))
            means, deviations, floors = [0.0, variables, 0.0], [1.0, highest, steepest], [0.0, 0.0, 0.0]
        model = LinearModel(means, deviations, points, self._peak_noise, floors)
        scatter = _scatter(model, points)
        return LinearModel(means, deviations, points, scatter, floors) if scatter > self._peak_noise else model

    def _correction(self, points: Sequence[Point]) -> float:
        """Return the prior mean of c: 1, unless peaks differ from the estimate by more than its error allows.

        The correction is the median error, shrunk towards 0; a larger error is shrunk less (positive-part James-Stein
        shrinkage).
        """
        first = self._footprints[0]
        far = [p for p in points if abs(p.value - p.features[0]) > first.absolute_error_bytes and p.features[0]]
        errors = [p.value / p.features[0] - 1 for p in far if not p.at_least or p.value > p.features[0]]
        if not self._context.on_cpu and (slope := self._slope_ratio()) is not None:
            errors = [slope - 1]
        median = statistics.median(errors) if errors else 0.0
        allowed = max(_IMPLAUSIBLE_ERROR, first.relative_error)
        return 1 + median * (1 - (allowed / median) ** 2) if abs(median) > allowed else 1.0

    def _slope_ratio(self) -> float | None:
        """Return the rise of the peaks over that of the estimate; None if fewer than two sizes have run.

        A ratio of levels would be wrong on a GPU, where the estimate lacks a constant: the context and workspaces.
        """
        (low, low_bytes), (high, high_bytes) = min(self._peaks, default=(0, 0.0)), max(self._peaks, default=(0, 0.0))
        if low == high:
            return None
        before, after = estimates(self._footprints, np.array([low, high]))
        return (high_bytes - low_bytes) / (after - before) if high_bytes > low_bytes and after > before else None

    def _features(self, configs: ConfigArrays) -> Matrix:
        estimated = estimates(self._footprints, configs.batch)
        return np.stack([estimated, np.ones(len(configs)), configs.batch], axis=1)


def _scatter(model: LinearModel, points: Sequence[Point]) -> float:
    """Return the relative standard deviation of measured peaks around the model; 0 if there are too few peaks."""
    measured = [point for point in points if not point.at_least]
    if len(measured) < _FEWEST_TO_SCATTER:
        return 0.0
    expected, _ = model.predict(np.array([point.features for point in measured]))
    values = np.array([point.value for point in measured])
    freedom = len(measured) - _FEWEST_TO_SCATTER + 1
    return float(np.sqrt(np.sum(np.square((values - expected) / np.maximum(values, 1.0))) / freedom))


def _highest_affine(peaks: Sequence[tuple[int, float]], batch: Vector) -> Vector:
    """Return an upper bound of the peak of each batch size, in bytes, if peaks are affine in the batch size.

    A batch takes at most the peak of a larger batch, and at most the peak of a smaller batch times the ratio of sizes. The
    bound is inf if no peak was measured.
    """
    bounds = [peak * np.maximum(1.0, batch / size) for size, peak in peaks]
    return np.asarray(np.min(bounds, axis=0)) if bounds else np.full(len(batch), np.inf)


def least_device_bytes(description: Description, batch_size: int) -> int:
    """Return a lower bound in bytes: the estimate minus twice its error, or the size of the variables if that is larger."""
    variables = description.parameter_bytes + description.optimizer_bytes
    if not description.footprints:
        return variables
    estimated = float(estimates(description.footprints, np.array([batch_size]))[0])
    return max(variables, round(estimated - 2 * description.footprints[0].error_bytes(estimated)))


def estimates(footprints: Sequence[Footprint], batch: Vector) -> Vector:
    """Estimate device memory for each batch size, in bytes; 0 without footprints.

    The estimate is piecewise linear through the footprints, and never falls.
    """
    if not footprints:
        return np.zeros(len(batch))
    sizes = np.array([footprint.batch_size for footprint in footprints])
    values = np.maximum.accumulate([float(footprint.device_bytes) for footprint in footprints])
    if len(sizes) == 1:
        return np.asarray(values[0] * np.maximum(1.0, batch / sizes[0]))
    index = np.searchsorted(sizes[1:-1], batch)
    slopes = np.diff(values) / np.diff(sizes)
    line = values[index] + slopes[index] * (batch - sizes[index])
    return np.asarray(np.maximum(values[0] * np.minimum(1.0, batch / sizes[0]), line))
