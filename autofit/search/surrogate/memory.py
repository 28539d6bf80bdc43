"""Memory of configs that have not run: fitted to those that have, with an upper bound that carries the uncertainty.

Both are linear models (`linear.LinearModel`), monotone in every knob and refitted in a moment after each trial; an OOM is a
censored point: the true value is higher than what was seen.

- Device: peak = c·E(b) + V + k·b, E the estimate from the train step's graph (it knows the steps in the curve), c near 1
  and the affine rest near 0 until trials say otherwise. Without an estimate, V + k·b alone.
- Host: ΣPSS = process + k·b + n·b·s·c + t·b·s·m + w·(U + a·b·s), the terms of `footprint.host`. Bytes a queued batch (c), a
  thread (m) and a worker process (U, a) are fitted: their first values are only where the fit begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autofit.records.trial import Description, FitConfig, Footprint, Limits, Measurement, Outcome, Trial
from autofit.search.config_arrays import ConfigArrays, Vector
from autofit.search.surrogate import host_memory
from autofit.search.surrogate.bayesian_linear import LinearModel, Point

_QUANTILE = 2.5  # standard deviations of the upper bound: 99.4 % of a normal distribution lie below
_DEVICE_NOISE = 0.01  # of a peak, run to run, where operations run one after the other
_OVERLAPPING_NOISE = 0.06  # on a CPU (measured: tests/benchmarks/memory.py): operations overlap by chance
_NOISE_SHARE = 0.4  # noise of a peak for each part of the estimate's error: both come of what overlaps by chance
_LEAST_NOISE = 0.02
_WRONG = 0.25  # an estimate further off than this, relative, is not of what runs
_SHARES = (0.3, 2.0, 0.3)  # how the estimate's error is shared out to c, V and k (tuned on tests/benchmarks/memory.py)
_HOST_NOISE = 0.03
_OCTAVE = 0.02  # uncertainty of the form, relative, for each doubling beyond the largest batch that ran
_WORKER_SPREAD_BYTES = 100 * 2.0**20  # until one has run: what Python touches of shared pages depends on the user's objects
_WORKER_SPREAD_SHARE = 0.3  # or so much of the process it is forked from, of which it may come to write every page
_THREAD_SPREAD = 0.6  # batches a thread: it holds what it makes, and what that is made of
_BATCHES_SHARE = 0.1  # of what was seen, guessed to be batches, where nobody said how large a sample is
_UNKNOWN_PROCESS_BYTES = 2.0**30
_PAST_NOISE = 3.0  # times that of a trial of now: under other limits or versions a peak is nearly the same
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
        warm_start: trials of an earlier tune of the same workload under other limits or versions, that ran to their end.
    """

    def __init__(
        self,
        description: Description,
        limits: Limits,
        *,
        on_cpu: bool,
        trials: Sequence[Trial] = (),
        warm_start: Sequence[Trial] = (),
    ) -> None:
        self._description, self._limits, self._on_cpu, self._warm_start = (
            description,
            limits,
            on_cpu,
            frozenset(map(id, warm_start)),
        )
        trials = (*trials, *warm_start)
        self._footprints = description.footprints
        self._noise = _OVERLAPPING_NOISE if on_cpu else _DEVICE_NOISE
        self._largest = max((t.config.batch_size or 1 for t in trials if t.measurement.outcome is Outcome.OK), default=1)
        self._runs = any(t.measurement.outcome is Outcome.OK for t in trials)
        self._device = self._fit_device(trials)
        self._host = self._fit_host(trials)

    def device(self, config: FitConfig) -> Prediction | None:
        """Device memory of a config; None where nothing is known of it: no estimate, and no trial that read a peak."""
        predicted = self._device_bytes(ConfigArrays.of([config]))
        return None if predicted is None else Prediction(float(predicted[0][0]), float(predicted[1][0]))

    def host(self, config: FitConfig) -> Prediction:
        """Host memory of a config."""
        expected, upper = self._host_bytes(ConfigArrays.of([config]))
        return Prediction(float(expected[0]), float(upper[0]))

    def fits(self, config: FitConfig) -> bool:
        """Whether the upper bounds of both memories are within the limits."""
        device, limit = self.device(config), self._limits.device_bytes
        within = device is None or limit is None or device.upper_bytes <= limit
        return within and self.host(config).upper_bytes <= self._limits.host_bytes

    def shares(self, configs: ConfigArrays, deviations: float) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
        """Memory as shares of the limits, (device, host): what is expected, and so many standard deviations above that.

        They are 0 where there is no limit or nothing is known.
        """
        device, limit = self._device_bytes(configs, deviations), self._limits.device_bytes
        expected, upper = self._host_bytes(configs, deviations)
        if device is None or limit is None:
            device, limit = (np.zeros(len(configs)), np.zeros(len(configs))), 1
        host_limit = self._limits.host_bytes if self._host_known else math.inf
        return (device[0] / limit, expected / host_limit), (device[1] / limit, upper / host_limit)

    def _device_bytes(self, configs: ConfigArrays, deviations: float = _QUANTILE) -> tuple[Vector, Vector] | None:
        """Expected bytes and upper bounds."""
        if self._device is None:
            return None
        features = self._device_features(configs)
        if not self._device_points:
            return features[:, 0], features[:, 0] * (1 + deviations / 2 * self._footprints[0].relative_error)
        expected, upper = self._bounded(self._device, features, configs, deviations)
        if self._footprints:
            return expected, upper
        return expected, np.minimum(upper, _in_proportion(self._peaks, configs.batch) * (1 + deviations * self._noise))

    def _host_bytes(self, configs: ConfigArrays, deviations: float = _QUANTILE) -> tuple[Vector, Vector]:
        return self._bounded(self._host, self._host_features(configs), configs, deviations)

    def _bounded(
        self, model: LinearModel, features: npt.NDArray[np.float64], configs: ConfigArrays, deviations: float
    ) -> tuple[Vector, Vector]:
        expected, deviation = model.predict(features)
        octaves = np.maximum(0.0, np.log2(configs.batch / self._largest)) if self._runs else np.zeros(len(configs))
        return expected, expected + deviations * np.hypot(deviation, _OCTAVE * octaves * expected)

    def _fit_device(self, trials: Sequence[Trial]) -> LinearModel | None:
        points, self._peaks = [], []
        for trial in trials:
            m, features = trial.measurement, self._device_features(ConfigArrays.of([trial.config]))[0]
            if m.outcome is Outcome.OK and m.device_peak_bytes is not None:
                points.append(Point(tuple(features), float(m.device_peak_bytes), noise=self._noise_of(trial)))
                self._peaks.append((trial.config.batch_size or 1, float(m.device_peak_bytes)))
            elif m.outcome is Outcome.DEVICE_OOM and self._limits.device_bytes is not None:
                points.append(Point(tuple(features), float(self._limits.device_bytes), at_least=True))
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
        return LinearModel((0.0, held, 0.0), (1.0, highest, steepest), points, self._noise, (0.0, 0.0, 0.0))

    def _noise_of(self, trial: Trial) -> float:
        return _PAST_NOISE if id(trial) in self._warm_start else 1.0

    def _correction(self, points: Sequence[Point]) -> float:
        """The factor by which the estimate was wrong: 1 unless trials are further off than it should be.

        What is further off is believed the more, the further it is (positive-part James-Stein shrinkage).
        """
        off = [p.value / p.features[0] - 1 for p in points if not p.at_least or p.value > p.features[0]]
        middle = statistics.median(off) if off else 0.0
        error = max(_WRONG, self._footprints[0].relative_error)
        return 1 + middle * (1 - (error / middle) ** 2) if abs(middle) > error else 1.0

    def _device_features(self, configs: ConfigArrays) -> npt.NDArray[np.float64]:
        return np.stack([self._estimated(configs.batch), np.ones(len(configs)), configs.batch], axis=1)

    def _estimated(self, batch: Vector) -> Vector:
        """The estimate for many batch sizes; 0 without one."""
        if not self._footprints:
            return np.zeros(len(batch))
        sizes, places = np.unique(batch, return_inverse=True)
        return np.array([estimated_bytes(self._footprints, int(size)) for size in sizes])[places]

    def _fit_host(self, trials: Sequence[Trial]) -> LinearModel:
        d = self._description
        seen = [float(t.measurement.host_peak_bytes or 0) for t in trials if t.measurement.outcome is Outcome.OK]
        process = float(d.process_bytes or min((p for p in seen if p), default=_UNKNOWN_PROCESS_BYTES))
        self._host_known = bool(d.process_bytes) or any(seen)
        self._sample_bytes = float(d.sample_bytes) or self._guessed_sample_bytes(process, trials)
        points = []
        for trial in trials:
            m = trial.measurement
            features = tuple(self._host_features(ConfigArrays.of([trial.config]), m)[0])
            if m.outcome is Outcome.OK and m.host_peak_bytes is not None:
                points.append(Point(features, float(m.host_peak_bytes), noise=self._noise_of(trial)))
            elif m.outcome is Outcome.HOST_OOM:
                reached = max(self._limits.host_bytes, m.evidence.last_host_bytes or 0)
                points.append(Point(features, float(reached), at_least=True))
        worker = max(_WORKER_SPREAD_BYTES, _WORKER_SPREAD_SHARE * process)
        mean = (process, 1.0, 1.0, 1.0, float(host_memory.WORKER_BYTES), float(host_memory.WORKER_BATCHES))
        deviation = (0.3 * process, 0.5, 0.4, _THREAD_SPREAD, worker, float(host_memory.WORKER_BATCHES))
        return LinearModel(mean, deviation, points, _HOST_NOISE, (0.5 * process, 0.0, 0.0, 0.0, 0.0, 0.0))

    def _guessed_sample_bytes(self, process: float, trials: Sequence[Trial]) -> float:
        """What a sample may take where nobody said: a tenth of what the first trial that ran held was batches."""
        first = next((t.config for t in trials if t.measurement.outcome is Outcome.OK), FitConfig())
        configs = ConfigArrays.of([first])
        return _BATCHES_SHARE * process / float(host_memory.held_batches(configs)[0] * configs.batch[0])

    def _host_features(self, configs: ConfigArrays, measured: Measurement | None = None) -> npt.NDArray[np.float64]:
        """(1, step on a CPU, batches held, those that threads make, worker processes, batches they hold), in bytes.

        The batches held are those that were seen where the queue was seen full.
        """
        held, processes = host_memory.held_batches(configs), host_memory.worker_processes(configs)
        if measured is not None and measured.queued_batches is not None:
            held = held + np.where(
                configs.queued, np.minimum(0, measured.queued_batches - host_memory.queued_batches(configs)), 0.0
            )
        batch_bytes = configs.batch * self._sample_bytes
        step = self._step_bytes(configs.batch) if self._on_cpu else np.zeros(len(configs))
        of_threads, of_processes = host_memory.worker_threads(configs) * batch_bytes, processes * batch_bytes
        return np.stack([np.ones(len(configs)), step, held * batch_bytes, of_threads, processes, of_processes], axis=1)

    def _step_bytes(self, batch: Vector) -> Vector:
        """What the train step takes on a CPU: the estimate, or weights, gradients and a few batches."""
        if self._footprints:
            return self._estimated(batch)
        return 2 * self._description.parameter_bytes + 4 * batch * self._sample_bytes


def _in_proportion(peaks: Sequence[tuple[int, float]], batch: Vector) -> Vector:
    """The most that an affine peak can be: what a larger batch took, and no more than in proportion to a smaller one's."""
    bounds = [peak * np.maximum(1.0, batch / b) for b, peak in peaks]
    return np.asarray(np.min(bounds, axis=0)) if bounds else np.full(len(batch), np.inf)


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
    index = next((i for i, size in enumerate(sizes[1:-1]) if batch_size <= size), len(sizes) - 2)
    slope = (values[index + 1] - values[index]) / (sizes[index + 1] - sizes[index])
    return max(values[0] * min(1.0, batch_size / sizes[0]), values[index] + slope * (batch_size - sizes[index]))
