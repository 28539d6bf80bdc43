"""Predict the memory of configs that have not run from those that have, with an upper bound on each prediction.

Both memories are linear models (`bayesian_linear.LinearModel`), monotone in every knob and refitted after each trial. An
OOM is a censored point: the true value is above the limit.

- Device: peak = c·E(b) + V + k·b. E is the estimate from the graph of the train step, which knows the jumps of the curve;
  c is near 1, V and k are near 0 until trials show otherwise. Without an estimate, peak = V + k·b.
- Host: ΣPSS = process + step + n·b·s·c + t·b·s·m + w·(U + a·b·s), the terms of `host_memory`. The bytes of a queued batch
  (c), a thread (m) and a worker process (U, a) are fitted, starting from the constants there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import Description, FitConfig, Limits, Measurement, Trial
from autofit.search.config_arrays import ConfigArrays, Matrix, Vector
from autofit.search.surrogate import host_memory
from autofit.search.surrogate.bayesian_linear import LinearModel, Point
from autofit.search.surrogate.device_estimate import estimated_bytes

_BOUND_DEVIATIONS = 2.5  # standard deviations up to an upper bound: 99.4 % of a normal distribution lie below
_SEQUENTIAL_NOISE = 0.01  # relative, of a device peak from run to run where operations run one after the other
_COMPILED_NOISE = 0.02  # the same where XLA has laid out the step's buffers (measured: tests/benchmarks/memory.py)
_OVERLAPPING_NOISE = 0.06  # the same where operations overlap by chance (measured: ditto, on a CPU)
_FEWEST_TO_SCATTER = 3  # measured peaks: through two of them goes a line
_IMPLAUSIBLE_ERROR = 0.25  # relative: an estimate that is further off describes another computation
_ERROR_SPLIT = (
    0.3,
    2.0,
    0.3,
)  # the estimate's error as prior deviations of c, V and k (tuned on tests/benchmarks/memory.py)
_HOST_NOISE = 0.03  # relative, of a host peak from run to run
_ERROR_PER_OCTAVE = 0.02  # relative error of the linear form, for each doubling beyond the largest batch that ran
_WORKER_DEVIATION_BYTES = 100 * 2.0**20  # prior, of a worker process: it copies the shared pages that Python writes to ...
_WORKER_DEVIATION_SHARE = 0.3  # ... in the worst case all pages of the process it is forked from: a share of that
_ASSUMED_BATCHES_SHARE = 0.1  # share of the first host peak assumed to be batches where the sample size is unknown
_DEFAULT_PROCESS_BYTES = 2.0**30  # assumed where nothing has been read
_WARM_START_NOISE = 3.0  # times a trial's own noise: other limits or versions change a peak little
_NO_FLOOR = -math.inf

_Observations = Sequence[tuple[Trial, float]]  # trials, and how noisy each is relative to a trial of this tune


@dataclass(frozen=True)
class Prediction:
    """Expected memory of a config and the bound that it stays below with 99 % probability, bytes."""

    expected_bytes: float
    upper_bytes: float


@dataclass(frozen=True)
class _DeviceFit:
    """Device memory fitted to trials.

    `peaks` are (batch size, bytes) of the finished ones; `jumps` is True where an OOM lies above every line through them.
    """

    model: LinearModel
    peaks: tuple[tuple[int, float], ...]
    jumps: bool


@dataclass(frozen=True)
class _HostFit:
    """Host memory fitted to trials; `is_known` is False where no reading says how large the process is."""

    model: LinearModel
    sample_bytes: float
    is_known: bool


class MemorySurrogate:
    """Predicts both memories of a workload on one device.

    Args:
        description: of the workload, with its footprints.
        limits: under which the trials ran.
        on_cpu: whether the train step itself takes host memory.
        trials: those of this tune.
        warm_start: finished trials of an earlier tune of the same workload under other limits or versions.
        cores: CPU cores, for AUTOTUNE.
    """

    def __init__(
        self,
        description: Description,
        limits: Limits,
        *,
        on_cpu: bool,
        trials: Sequence[Trial] = (),
        warm_start: Sequence[Trial] = (),
        cores: int = 1,
    ) -> None:
        self._description, self._limits, self._on_cpu, self._cores = description, limits, on_cpu, cores
        self._footprints = description.footprints
        observations = [(trial, 1.0) for trial in trials] + [(trial, _WARM_START_NOISE) for trial in warm_start]
        finished = [trial for trial, _ in observations if trial.measurement.outcome is Outcome.OK]
        self._largest_batch = max((trial.config.batch_size or 1 for trial in finished), default=None)
        self._device = self._fit_device(observations)
        self._host = self._fit_host(observations, finished)

    def device(self, config: FitConfig) -> Prediction | None:
        """Device memory of a config; None without an estimate and without a trial that read a peak."""
        predicted = self._device_bytes(self._arrays(config))
        return None if predicted is None else Prediction(float(predicted[0][0]), float(predicted[1][0]))

    def host(self, config: FitConfig) -> Prediction:
        """Host memory of a config."""
        expected, upper = self._host_bytes(self._arrays(config))
        return Prediction(float(expected[0]), float(upper[0]))

    def fits(self, config: FitConfig) -> bool:
        """Whether the upper bounds of both memories are within the limits."""
        device, limit = self.device(config), self._limits.device_bytes
        within = device is None or limit is None or device.upper_bytes <= limit
        return within and self.host(config).upper_bytes <= self._limits.host_bytes

    def shares(self, configs: ConfigArrays, deviations: float) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
        """Predict memory in units of the limits, with upper bounds `deviations` standard deviations above the expectation.

        Returns:
            The expected shares (device, host) and their upper bounds; 0 without a limit, or where nothing is known.
        """
        device, limit = self._device_bytes(configs, deviations), self._limits.device_bytes
        expected, upper = self._host_bytes(configs, deviations)
        if device is None or limit is None:
            device, limit = (np.zeros(len(configs)), np.zeros(len(configs))), 1
        host_limit = self._limits.host_bytes if self._host.is_known else math.inf
        return (device[0] / limit, expected / host_limit), (device[1] / limit, upper / host_limit)

    def _arrays(self, config: FitConfig) -> ConfigArrays:
        return ConfigArrays.of([config], self._cores)

    def _device_bytes(self, configs: ConfigArrays, deviations: float = _BOUND_DEVIATIONS) -> tuple[Vector, Vector] | None:
        """Expected bytes and upper bounds."""
        if self._device is None:
            if not self._footprints:
                return None
            estimated = self._estimated(configs.batch)
            first = self._footprints[0]
            errors = np.maximum(first.relative_error * estimated, first.absolute_error_bytes)
            return estimated, estimated + deviations / 2 * errors
        expected, upper = self._bounded(self._device.model, self._device_features(configs), configs, deviations)
        if self._footprints:
            return expected, upper
        highest = _highest_affine(self._device.peaks, configs.batch)
        if self._device.jumps:
            highest = np.where(configs.batch > max(size for size, _ in self._device.peaks), np.inf, highest)
        return np.minimum(expected, highest), np.minimum(upper, highest * (1 + deviations * self._peak_noise))

    def _host_bytes(self, configs: ConfigArrays, deviations: float = _BOUND_DEVIATIONS) -> tuple[Vector, Vector]:
        features = self._host_features(configs, self._host.sample_bytes)
        return self._bounded(self._host.model, features, configs, deviations)

    def _bounded(
        self, model: LinearModel, features: Matrix, configs: ConfigArrays, deviations: float
    ) -> tuple[Vector, Vector]:
        expected, deviation = model.predict(features)
        octaves = np.maximum(0.0, np.log2(configs.batch / self._largest_batch)) if self._largest_batch else 0.0
        return expected, expected + deviations * np.hypot(deviation, _ERROR_PER_OCTAVE * octaves * expected)

    @property
    def _peak_noise(self) -> float:
        """Of a measured peak, relative: a matter of how memory is allocated, not of how well it was estimated."""
        if self._description.jit_compile:
            return _COMPILED_NOISE
        return _OVERLAPPING_NOISE if self._on_cpu or self._footprints else _SEQUENTIAL_NOISE

    def _fit_device(self, observations: _Observations) -> _DeviceFit | None:
        """Fit c, V and k; None without an observation."""
        points, peaks = list[Point](), list[tuple[int, float]]()
        for trial, noise in observations:
            measured, features = trial.measurement, tuple(self._device_features(self._arrays(trial.config))[0])
            if measured.outcome is Outcome.OK and measured.device_peak_bytes is not None:
                points.append(Point(features, float(measured.device_peak_bytes), noise=noise))
                peaks.append((trial.config.batch_size or 1, float(measured.device_peak_bytes)))
            elif measured.outcome is Outcome.DEVICE_OOM and self._limits.device_bytes is not None:
                points.append(Point(features, float(self._limits.device_bytes), at_least=True))
        if not points:
            return None
        ooms = [(np.array([point.features[2]]), point.value) for point in points if point.at_least]
        jumps = any(_highest_affine(peaks, batch)[0] < limit for batch, limit in ooms)
        if self._footprints:
            first, last = self._footprints[0], self._footprints[-1]
            error = first.relative_error / 2  # 95 % lie within two standard deviations
            rise = (last.device_bytes - first.device_bytes) / max(1, last.batch_size - first.batch_size)
            errors = (error, max(1.0, first.error_bytes(first.device_bytes) / 2), error * (max(rise, 0.0) + 1.0))
            deviations = [share * one for share, one in zip(_ERROR_SPLIT, errors, strict=True)]
            means, floors = (self._correction(points), 0.0, 0.0), (0.0, _NO_FLOOR, 0.0)
            model = LinearModel(means, deviations, points, self._peak_noise, floors)
            noise = max(self._peak_noise, _scatter(model, points))
            return _DeviceFit(LinearModel(means, deviations, points, noise, floors), tuple(peaks), jumps)
        variables = float(2 * self._description.parameter_bytes + self._description.optimizer_bytes)
        highest = max(1.0, *(point.value for point in points))  # an allocator may count no byte of small tensors
        steepest = max(1.0, *(point.value / (point.features[2] or 1.0) for point in points))
        model = LinearModel((0.0, variables, 0.0), (1.0, highest, steepest), points, self._peak_noise, (0.0, 0.0, 0.0))
        return _DeviceFit(model, tuple(peaks), jumps)

    def _correction(self, points: Sequence[Point]) -> float:
        """The prior mean of c: 1 unless trials are further off than the estimate's error allows.

        The larger the excess, the more of it counts (positive-part James-Stein shrinkage).
        """
        first = self._footprints[0]
        far = [p for p in points if abs(p.value - p.features[0]) > first.absolute_error_bytes and p.features[0]]
        errors = [p.value / p.features[0] - 1 for p in far if not p.at_least or p.value > p.features[0]]
        median = statistics.median(errors) if errors else 0.0
        allowed = max(_IMPLAUSIBLE_ERROR, first.relative_error)
        return 1 + median * (1 - (allowed / median) ** 2) if abs(median) > allowed else 1.0

    def _device_features(self, configs: ConfigArrays) -> Matrix:
        return np.stack([self._estimated(configs.batch), np.ones(len(configs)), configs.batch], axis=1)

    def _estimated(self, batch: Vector) -> Vector:
        """The estimate for each batch size; 0 without footprints."""
        if not self._footprints:
            return np.zeros(len(batch))
        sizes, indices = np.unique(batch, return_inverse=True)
        return np.array([estimated_bytes(self._footprints, int(size)) for size in sizes])[indices]

    def _fit_host(self, observations: _Observations, finished: Sequence[Trial]) -> _HostFit:
        peaks = [float(trial.measurement.host_peak_bytes) for trial in finished if trial.measurement.host_peak_bytes]
        described = host_memory.held_bytes(self._description) if self._description.process_bytes else 0
        process = float(described or min(peaks, default=_DEFAULT_PROCESS_BYTES))
        sample_bytes = float(self._description.sample_bytes) or _assumed_sample_bytes(process, finished)
        points = []
        for trial, noise in observations:
            measured = trial.measurement
            features = tuple(self._host_features(self._arrays(trial.config), sample_bytes, measured)[0])
            if measured.outcome is Outcome.OK and measured.host_peak_bytes is not None:
                points.append(Point(features, float(measured.host_peak_bytes), noise=noise))
            elif measured.outcome is Outcome.HOST_OOM:
                reached = max(self._limits.host_bytes, measured.evidence.last_host_bytes or 0)
                points.append(Point(features, float(reached), at_least=True))
        worker_deviation = max(_WORKER_DEVIATION_BYTES, _WORKER_DEVIATION_SHARE * process)
        batches = float(host_memory.WORKER_BATCHES)
        prior = (  # of each coefficient: mean, standard deviation, floor
            (process, 0.3 * process, 0.5 * process),  # bytes of the process
            (1.0, 0.5, 0.0),  # the step on a CPU, relative to its estimate
            (1.0, 0.4, 0.0),  # a held batch, relative to the bytes of its samples
            (1.0, 0.6, 0.0),  # batches a thread: it holds the one that it makes, and what that is made of
            (float(host_memory.WORKER_BYTES), worker_deviation, 0.0),  # bytes a worker process
            (batches, batches, 0.0),  # batches a worker process
        )
        means, deviations, floors = zip(*prior, strict=True)
        model = LinearModel(means, deviations, points, _HOST_NOISE, floors)
        return _HostFit(model, sample_bytes, is_known=bool(self._description.process_bytes or peaks))

    def _host_features(self, configs: ConfigArrays, sample_bytes: float, measured: Measurement | None = None) -> Matrix:
        """(1, step on a CPU, batches held, those that threads make, worker processes, batches they hold), in bytes.

        A trial that read how full its queue was counts the batches that it read.
        """
        held, processes = host_memory.held_batches(configs), host_memory.worker_processes(configs)
        if measured is not None and measured.queued_batches is not None:
            held = held + np.where(
                configs.queued, np.minimum(0, measured.queued_batches - host_memory.queued_batches(configs)), 0.0
            )
        batch_bytes = configs.batch * sample_bytes
        step = self._step_bytes(configs.batch, sample_bytes) if self._on_cpu else np.zeros(len(configs))
        step = np.maximum(step, self._description.conversion_bytes)  # arrays are converted before the first step
        of_threads, of_processes = host_memory.worker_threads(configs) * batch_bytes, processes * batch_bytes
        return np.stack([np.ones(len(configs)), step, held * batch_bytes, of_threads, processes, of_processes], axis=1)

    def _step_bytes(self, batch: Vector, sample_bytes: float) -> Vector:
        """Bytes of the train step on a CPU: the estimate, or weights, gradients and a few batches."""
        if self._footprints:
            return self._estimated(batch) - (self._footprints[0].device_bytes - self._footprints[0].step_bytes)
        return 2 * self._description.parameter_bytes + 4 * batch * sample_bytes


def _scatter(model: LinearModel, points: Sequence[Point]) -> float:
    """The relative deviation of measured peaks from the model, as far as there are more of them than it can follow."""
    measured = [point for point in points if not point.at_least]
    if len(measured) < _FEWEST_TO_SCATTER:
        return 0.0
    expected, _ = model.predict(np.array([point.features for point in measured]))
    values = np.array([point.value for point in measured])
    freedom = len(measured) - _FEWEST_TO_SCATTER + 1
    return float(np.sqrt(np.sum(np.square((values - expected) / np.maximum(values, 1.0))) / freedom))


def _assumed_sample_bytes(process_bytes: float, finished: Sequence[Trial]) -> float:
    """Bytes a sample where the description gives none, from the batches that the first finished trial held."""
    configs = ConfigArrays.of([finished[0].config if finished else FitConfig()])
    return _ASSUMED_BATCHES_SHARE * process_bytes / float(host_memory.held_batches(configs)[0] * configs.batch[0])


def _highest_affine(peaks: Sequence[tuple[int, float]], batch: Vector) -> Vector:
    """The highest peak that an affine line through the measured ones allows, bytes; inf without any.

    A batch takes at most the peak of any larger one, and at most its proportion of any smaller one's.
    """
    bounds = [peak * np.maximum(1.0, batch / size) for size, peak in peaks]
    return np.asarray(np.min(bounds, axis=0)) if bounds else np.full(len(batch), np.inf)
