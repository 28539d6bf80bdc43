"""Throughput of configs that have not run: the forms of `rates`, fitted to the three rates of every trial, and corrected.

The parameters have broad priors and are fitted by least squares (their maximum a posteriori); their uncertainty is the
Laplace approximation at it (Bishop, Pattern Recognition and Machine Learning, 4.4). What the forms leave over of the real
rate, a plateau, a dip, a worker in the way of another, is a Gaussian process over batch, workers and queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.records.trial import Measurement, Trial
from autofit.search.config_arrays import ConfigArrays, Vector
from autofit.search.surrogate.gaussian_process import Residual
from autofit.search.surrogate.rate_model import NAMES, Matrix, Rates, log_rates

_STEP_NOISE, _INPUT_NOISE, _FIT_NOISE = 0.03, 0.06, 0.04  # of a rate, relative; the forms' own error included
_AMPLITUDE = 0.04  # of what the forms leave over of the real rate
_OCTAVES = (2.0, 2.0, 6.0)  # its length scales in the batch, the workers and the queue, in doublings
_OTHER_KIND = 2.0  # how far processes are from threads, in length scales
_ABOVE_CEILING = 0.005  # what a rate may be above its lower ceiling, but for the ceilings' own uncertainty
_STEP_AMPLITUDES = (0.02, 0.02)  # of what the step's form leaves over: from batch to batch, and over octaves
_STEP_OCTAVES = (0.08, 1.0)  # the length scales of the two
_STEP_READING_NOISE = 0.02
_USUAL_WEIGHT = 3.0  # trials that the usual amplitude of what is left over is worth
_LOSS_PER_POWER = 0.005  # assumed, of a batch that hardware does not tile by, for each power of two that it lacks ...
_ROUND_ENOUGH = 6  # ... up to a multiple of 64
_CROWDING = 0.005  # assumed: what each worker beyond the cores costs the input
_DIFFERENCE = 1e-5  # of a parameter's logarithm, for a derivative
_BANDWIDTH = 0.5e9  # bytes a second through a pool of processes: 0.12e9 was measured with large batches, the prior is broad
_DRIFT = 0.2  # by how much a parameter's logarithm may have changed since an earlier tune
_UNKNOWN = 5.0  # prior deviation of what the first trial fixes anyway, in logarithms


@dataclass(frozen=True)
class RatePrediction:
    """Natural logarithms of samples per second, and their standard deviations."""

    mean: Vector
    deviation: Vector


class ThroughputSurrogate:
    """Predicts the real rate of `fit`.

    Args:
        trials: what ran to its end, one trial at the least.
        cores: CPU cores.
        sample_bytes: bytes a sample; 0 when unknown.
        on_cpu: whether the step takes the cores that the input needs.
        past: what was known from an earlier tune of the same workload, under other limits or versions.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        *,
        cores: int,
        sample_bytes: int,
        on_cpu: bool,
        warm_start: ThroughputSurrogate | None = None,
    ) -> None:
        self._at = ConfigArrays.of([t.config for t in trials])
        found = [t.measurement for t in trials]
        self._fit_rates = np.log([m.samples_per_second or math.nan for m in found])
        self._observed = np.concatenate([_logs(found, "compute"), _logs(found, "input"), self._fit_rates])
        self._known = np.isfinite(self._observed)
        self._noise = np.repeat((_STEP_NOISE, _INPUT_NOISE, _FIT_NOISE), len(found))
        self._prior, self._scale = warm_start.as_prior() if warm_start else self._priors(cores, sample_bytes, on_cpu)
        self._cores = cores
        from scipy.optimize import least_squares  # a third of a second to load: an answer that is known needs none of it

        found_at = least_squares(self._misfit, self._prior, jac=self._jacobian, method="lm", xtol=1e-4, ftol=1e-4)
        self._parameters: Vector = found_at.x
        slopes = self._jacobian(self._parameters)
        self._covariance = np.linalg.inv(slopes.T @ slopes)
        self._step_residual = self._fit_step_residual()
        left = self._fit_rates - self._log_rates(self._at, self._step_off(self._at)[0]).fit[0]
        noise = np.array([m.rate_noise for m in found])
        self._residual = Residual((_learnt(_AMPLITUDE, left),), (_places(self._at),), left, noise)

    def as_prior(self) -> tuple[Vector, Vector]:
        """Means and standard deviations of the parameters' logarithms, for a tune to come."""
        return self._parameters, np.sqrt(np.diag(self._covariance) + _DRIFT**2)

    def predict(self, configs: ConfigArrays) -> RatePrediction:
        """The real rate of configs."""
        off, rough = self._step_off(configs)
        base, slopes = self._with_slopes(self._parameters, configs, off)
        mean, left = self._residual.predict((_places(configs),))
        room = np.minimum(base.step, base.inputs)[0] - base.fit[0] - mean
        left = np.minimum(left, np.maximum(room, 0.0) + _ABOVE_CEILING)
        steps = slopes.fit.T
        by_step = steps[:, 0] / slopes.step[0] * rough
        variance = np.einsum("ij,jk,ik->i", steps, self._covariance, steps) + np.square(by_step) + np.square(left)
        return RatePrediction(base.fit[0] + mean, np.sqrt(variance))

    def ceilings(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        """Natural logarithms of samples per second of the step alone, and of the input alone."""
        rates = self._log_rates(configs, self._step_off(configs)[0])
        return rates.step[0], rates.inputs[0]

    def _fit_step_residual(self) -> Residual | None:
        """What the step's form leaves over: batches that suit the hardware and those that do not."""
        observed = self._observed[: len(self._at)]
        known = np.isfinite(observed)
        if not known.any():
            return None
        left = observed - self._log_rates(self._at).step[0] - _roundness(self._at.batch)
        places = tuple(p[known] for p in _batch_places(self._at))
        rough, smooth = _STEP_AMPLITUDES
        amplitudes = (_learnt(rough, left[known]), smooth)
        return Residual(amplitudes, places, left[known], np.full(known.sum(), _STEP_READING_NOISE))

    def _step_off(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        """By how much the step's form is off, and how unsure that is."""
        if self._step_residual is None:
            return _roundness(configs.batch), np.full(len(configs), math.hypot(*_STEP_AMPLITUDES))
        mean, deviation = self._step_residual.predict(_batch_places(configs))
        return mean + _roundness(configs.batch), deviation

    def _priors(self, cores: int, sample_bytes: int, on_cpu: bool) -> tuple[Vector, Vector]:
        """Means and standard deviations of the parameters' logarithms, in the order of `NAMES`."""
        rates = self._observed.reshape(3, -1)
        step, inputs = (np.where(np.isfinite(row), row, rates[2])[0] for row in rates[:2])
        pickle = sample_bytes / _BANDWIDTH if sample_bytes else 0.1 * math.exp(-inputs)
        half = math.log(16.0)
        priors = {
            "step_sample": (-step - math.log1p(16.0 / self._at.batch[0]), _UNKNOWN),
            "step_half": (half, 1.5),
            "input_sample": (-inputs, _UNKNOWN),
            "input_half": (math.log(0.5), 2.0),
            "threads": (math.log(0.6 * cores), 1.5),
            "processes": (math.log(0.9 * cores), 0.4),
            "pickle": (math.log(pickle), 1.5),
            "receive": (math.log(pickle), 1.5),
            "overlap": (math.log(1.5 if on_cpu else 5.0), 0.5),
        }
        means, deviations = zip(*(priors[name] for name in NAMES), strict=True)
        return np.array(means, float), np.array(deviations, float)

    def _misfit(self, parameters: Vector) -> Vector:
        rates = log_rates(parameters[None], self._at, 0.0, self._crowding(self._at))
        predicted = np.concatenate([rates.step[0], rates.inputs[0], rates.fit[0]])
        off = ((predicted - self._observed) / self._noise)[self._known]
        return np.concatenate([off, (parameters - self._prior) / self._scale])

    def _jacobian(self, parameters: Vector) -> Matrix:
        _, slopes = self._with_slopes(parameters, self._at)
        rows = np.concatenate([slopes.step, slopes.inputs, slopes.fit], axis=1) / self._noise
        return np.concatenate([rows[:, self._known].T, np.diag(1 / self._scale)])

    def _log_rates(self, configs: ConfigArrays, step_off: Matrix | float = 0.0) -> Rates:
        return log_rates(self._parameters[None], configs, step_off, self._crowding(configs))

    def _crowding(self, configs: ConfigArrays) -> Vector:
        """What workers beyond the cores are expected to cost the input, in logarithms."""
        return -_CROWDING * np.maximum(0.0, configs.workers - self._cores)

    def _with_slopes(
        self, parameters: Vector, configs: ConfigArrays, step_off: Matrix | float = 0.0
    ) -> tuple[Rates, Rates]:
        """The rates, and their derivatives by each parameter (forward differences), a row each."""
        rates = log_rates(
            np.vstack([parameters, parameters + _DIFFERENCE * np.eye(len(parameters))]),
            configs,
            step_off,
            self._crowding(configs),
        )
        slopes = [
            np.broadcast_to((r[1:] - r[:1]) / _DIFFERENCE, (len(parameters), len(configs)))
            for r in (rates.step, rates.inputs, rates.fit)
        ]
        return Rates(rates.step[:1], rates.inputs[:1], rates.fit[:1]), Rates(*slopes)


def _logs(found: Sequence[Measurement], side: str) -> Vector:
    readings = [getattr(m, f"{side}_samples_per_second") for m in found]
    return np.log([r or math.nan for r in readings])


def _learnt(amplitude: float, left: Vector) -> float:
    """How far a form tends to be off: what is usual, and what it was here (mean of an inverse-gamma posterior)."""
    return math.sqrt((_USUAL_WEIGHT * amplitude**2 + float(np.square(left).sum())) / (_USUAL_WEIGHT + len(left)))


def _batch_places(configs: ConfigArrays) -> tuple[Matrix, Matrix]:
    octaves = np.log2(configs.batch)[:, None]
    return octaves / _STEP_OCTAVES[0], octaves / _STEP_OCTAVES[1]


def _roundness(batch: Vector) -> Vector:
    """What a batch is expected to lose, in logarithms, for each power of two by which it is less round than it might be."""
    whole = batch.astype(int)
    twos = np.log2(whole & -whole)
    lacking = np.maximum(0.0, np.minimum(_ROUND_ENOUGH, np.floor(np.log2(batch))) - twos)
    return np.asarray(-_LOSS_PER_POWER * lacking)


def _places(configs: ConfigArrays) -> Matrix:
    kind = _OTHER_KIND * configs.processes
    scaled = (
        np.log2(v) / octaves
        for v, octaves in zip((configs.batch, configs.workers, configs.queue + 2), _OCTAVES, strict=True)
    )
    return np.stack([*scaled, kind], axis=1)
