"""Memory of configs that have not run: fitted to those that have, with an upper bound that carries the uncertainty.

Both are linear models (`linear.LinearModel`), monotone in every knob and refitted in a moment after each trial; an OOM is a
censored point: the true value is higher than what was seen.

- Device: peak = c·E(b) + V + k·b, E the estimate from the train step's graph (it knows the steps in the curve), c near 1
  and the affine rest near 0 until trials say otherwise. Without an estimate, V + k·b alone.
- Host: ΣPSS = process + k·b + n·b·s·c + w·(U + a·b·s), the terms of `footprint.host`. Bytes a queued batch (c) and a
  worker (U, a) are fitted: their first values are only where the fit begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autofit.footprint import host
from autofit.records import Description, FitConfig, Footprint, Limits, Measurement, Outcome, Trial
from autofit.surrogate.linear import LinearModel, Point

_QUANTILE = 2.5  # standard deviations of the upper bound: 99.4 % of a normal distribution lie below
_DEVICE_NOISE = 0.06  # of a peak, run to run (measured: tests/benchmarks/memory.py): operations overlap by chance
_NOISE_SHARE = 0.4  # noise of a peak for each part of the estimate's error: both come of what overlaps by chance
_LEAST_NOISE = 0.02
_WRONG = 0.25  # an estimate further off than this, relative, is not of what runs
_SHARES = (0.3, 2.0, 0.3)  # how the estimate's error is shared out to c, V and k (tuned on tests/benchmarks/memory.py)
_HOST_NOISE = 0.03
_OCTAVE = 0.02  # uncertainty of the form, relative, for each doubling beyond the largest batch that ran
_WORKER_SPREAD_BYTES = 100 * 2.0**20  # until one has run: what Python touches of shared pages depends on the user's objects
_NONE = -math.inf


@dataclass(frozen=True)
class Prediction:
    """What a config is expected to use, and the bound that it stays below with 99 % probability, bytes."""

    expected_bytes: float
    upper_bytes: float


class MemorySurrogate:
    """Predicts both memories of a workload on one device.

    Args:
        description: of the workload, with its footprints.
        limits: under which the trials ran.
        on_cpu: whether the train step itself takes host memory.
        trials: what has run.
    """

    def __init__(self, description: Description, limits: Limits, *, on_cpu: bool, trials: Sequence[Trial] = ()) -> None:
        self._description, self._limits, self._on_cpu = description, limits, on_cpu
        self._footprints = description.footprints
        self._largest = max((t.config.batch_size or 1 for t in trials if t.measurement.outcome is Outcome.OK), default=1)
        self._runs = any(t.measurement.outcome is Outcome.OK for t in trials)
        self._device = self._fit_device(trials)
        self._host = self._fit_host(trials)

    def device(self, config: FitConfig) -> Prediction | None:
        """Device memory of a config; None where nothing is known of it: no estimate, and no trial that read a peak."""
        if self._device is None:
            return None
        if not self._device_points:
            expected = self._device_features(config)[0]
            return Prediction(expected, expected * (1 + _QUANTILE / 2 * self._footprints[0].relative_error))
        return self._prediction(self._device, self._device_features(config), config)

    def host(self, config: FitConfig) -> Prediction:
        """Host memory of a config."""
        return self._prediction(self._host, self._host_features(config), config)

    def fits(self, config: FitConfig) -> bool:
        """Whether the upper bounds of both memories are within the limits."""
        device, limit = self.device(config), self._limits.device_bytes
        within = device is None or limit is None or device.upper_bytes <= limit
        return within and self.host(config).upper_bytes <= self._limits.host_bytes

    def _prediction(self, model: LinearModel, features: Sequence[float], config: FitConfig) -> Prediction:
        expected, deviation = model.predict(features)
        octaves = max(0.0, math.log2((config.batch_size or 1) / self._largest)) if self._runs else 0.0
        deviation = math.hypot(deviation, _OCTAVE * octaves * expected)
        return Prediction(expected, expected + _QUANTILE * deviation)

    def _fit_device(self, trials: Sequence[Trial]) -> LinearModel | None:
        points = []
        for trial in trials:
            m = trial.measurement
            if m.outcome is Outcome.OK and m.device_peak_bytes is not None:
                points.append(Point(self._device_features(trial.config), float(m.device_peak_bytes)))
            elif m.outcome is Outcome.DEVICE_OOM and self._limits.device_bytes is not None:
                points.append(Point(self._device_features(trial.config), float(self._limits.device_bytes), at_least=True))
        self._device_points = len(points)
        if not points and not self._footprints:
            return None
        d = self._description
        if self._footprints:
            error = self._footprints[0].relative_error / 2  # 95 % lie within two standard deviations
            first, last = self._footprints[0], self._footprints[-1]
            rise = (last.device_bytes - first.device_bytes) / max(1, last.batch_size - first.batch_size)
            deviation = tuple(s * u for s, u in zip(_SHARES, (1.0, first.device_bytes, max(rise, 0.0) + 1.0), strict=True))
            noise = max(_LEAST_NOISE, _NOISE_SHARE * self._footprints[0].relative_error)
            return LinearModel(
                (self._correction(points), 0.0, 0.0), [error * d for d in deviation], points, noise, (0.0, _NONE, 0.0)
            )
        held = float(2 * d.parameter_bytes + d.optimizer_bytes)
        highest = max(p.value for p in points)
        steepest = max((p.value / (p.features[2] or 1.0) for p in points), default=0.0)
        return LinearModel((0.0, held, 0.0), (1.0, highest, steepest), points, _DEVICE_NOISE, (0.0, 0.0, 0.0))

    def _correction(self, points: Sequence[Point]) -> float:
        """The factor by which the estimate was wrong: 1 unless trials are further off than it should be.

        What is further off is believed the more, the further it is (positive-part James-Stein shrinkage).
        """
        off = [p.value / p.features[0] - 1 for p in points if not p.at_least or p.value > p.features[0]]
        middle = statistics.median(off) if off else 0.0
        error = max(_WRONG, self._footprints[0].relative_error)
        return 1 + middle * (1 - (error / middle) ** 2) if abs(middle) > error else 1.0

    def _device_features(self, config: FitConfig) -> tuple[float, ...]:
        batch = config.batch_size or 1
        return (estimated_bytes(self._footprints, batch) if self._footprints else 0.0, 1.0, float(batch))

    def _fit_host(self, trials: Sequence[Trial]) -> LinearModel:
        points = []
        for trial in trials:
            m = trial.measurement
            features = self._host_features(trial.config, m)
            if m.outcome is Outcome.OK and m.host_peak_bytes is not None:
                points.append(Point(features, float(m.host_peak_bytes)))
            elif m.outcome is Outcome.HOST_OOM:
                seen = max(self._limits.host_bytes, m.evidence.last_host_bytes or 0)
                points.append(Point(features, float(seen), at_least=True))
        d = self._description
        process = float(d.process_bytes or 2**30)
        mean = (process, 1.0, 1.0, float(host.WORKER_BYTES), float(host.WORKER_BATCHES))
        deviation = (0.3 * process, 0.5, 0.4, _WORKER_SPREAD_BYTES, float(host.WORKER_BATCHES))
        return LinearModel(mean, deviation, points, _HOST_NOISE, (0.5 * process, 0.0, 0.0, 0.0, 0.0))

    def _host_features(self, config: FitConfig, measured: Measurement | None = None) -> tuple[float, ...]:
        """(1, step on a CPU, batches held, worker processes, batches they hold), bytes where a size is meant.

        The batches held are those that were seen where the queue was seen full.
        """
        batch = config.batch_size or 1
        parts = host.host_bytes_by_part(self._description, config, 0)
        queue = float(parts["queue"])
        if measured is not None and measured.queued_batches is not None and config.has_queue:
            seen = measured.queued_batches - host.queued_batches(config)
            queue += min(0, seen) * batch * self._description.sample_bytes
        processes = host.worker_processes(config)
        step = self._step_bytes(batch) if self._on_cpu else 0.0
        return (1.0, step, queue, float(processes), float(processes * batch * self._description.sample_bytes))

    def _step_bytes(self, batch: int) -> float:
        """What the train step takes on a CPU: the estimate, or weights, gradients and a few batches."""
        if self._footprints:
            return estimated_bytes(self._footprints, batch)
        return float(2 * self._description.parameter_bytes + 4 * batch * self._description.sample_bytes)


def least_device_bytes(description: Description, batch_size: int) -> int:
    """What a batch needs of device memory at the very least: the estimate less twice its error, or the variables."""
    variables = description.parameter_bytes + description.optimizer_bytes
    if not description.footprints:
        return variables
    error = description.footprints[0].relative_error
    return max(variables, round((1 - 2 * error) * estimated_bytes(description.footprints, batch_size)))


def estimated_bytes(footprints: Sequence[Footprint], batch_size: int) -> float:
    """The estimate of device memory for any batch size: along straight lines between and beyond those that there are.

    Never falling: what a smaller batch was estimated to need, a larger one needs.
    """
    known = sorted(footprints, key=lambda f: f.batch_size)
    sizes = [f.batch_size for f in known]
    values: list[float] = []
    for footprint in known:
        values.append(max(float(footprint.device_bytes), values[-1] if values else 0.0))
    if len(known) == 1:
        return values[0] * max(1.0, batch_size / sizes[0])
    place = next((i for i, size in enumerate(sizes[1:-1]) if batch_size <= size), len(sizes) - 2)
    slope = (values[place + 1] - values[place]) / (sizes[place + 1] - sizes[place])
    return max(values[0] * min(1.0, batch_size / sizes[0]), values[place] + slope * (batch_size - sizes[place]))
