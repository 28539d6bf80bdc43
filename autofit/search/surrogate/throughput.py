"""Predict the throughput of configs that have not run, with models of three rates fitted to all trials.

    step     R_c  = b / (h/N + t0 + t1·b)                  time is affine in the batch size b, so the rate saturates;
                                                           Python's h is spent once a call, which runs N steps
    input    R_in = b·(n^-s + g^-s)^(-1/s) / (p0 + p1·b)   n busy threads; the rate levels off at a capacity g (the GIL,
                                                           the disk, the cores): suddenly if s is large
                  = b·min(n, G) / (p0 + (p1 + x)·b)        n busy processes up to a capacity G; pickling a sample takes x s
                  ≤ 1 / r                                  with processes: receiving a sample takes r s, one at a time
                  = a·(rate of one thread per core)        with AUTOTUNE, which tf.data controls
    fit      R    = (R_c'^-k + R_in^-k)^(-1/k)             k = 1: step and input alternate; large k: the slower one limits
             1/R_c' = 1/R_c + c/(1+c)·min(n, m)/m / R_in   on a CPU with m cores, all of which the step uses: the input
                                                           takes cores from it, except while it waits (small c)

Workers beyond max_queue_size + 1 are idle. A queue evens out variation, so k grows with the queue size. t0 and p0 are
seconds per batch, t1 and p1 per sample, h per call. A smooth function replaces each minimum, so that the fit has gradients.

The parameters have broad priors and are fitted by least squares (maximum a posteriori). Their uncertainty is the Laplace
approximation (Bishop, Pattern Recognition and Machine Learning, 4.4). A Gaussian process over batch size, workers and queue
size models the residuals of the rate of `fit`: plateaus, dips, and workers that slow each other down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autofit.records.trial import Trial
from autofit.search.config_arrays import ConfigArrays, Matrix, Vector
from autofit.search.context import SearchContext
from autofit.search.surrogate.residual import Amplitude, Residual

# All noises, amplitudes and deviations are standard deviations of natural logarithms (0.03 is 3%).
_STEP_ERROR, _INPUT_ERROR, _FIT_ERROR = 0.03, 0.06, 0.04  # errors of the models, in addition to the noise of a reading
_AMPLITUDE = Amplitude(0.04, 0.5)  # of the residuals of the rate of `fit`
_LENGTH_SCALES = np.array((2.0, 2.0, 6.0, 0.5, 1.0, 1.0, 20.0))  # length scales of these residuals, over `coordinates`
_AUTO_DEVIATION = 0.2  # prior deviation of the input's log rate with AUTOTUNE, relative to one thread per core
_ABOVE_CEILING = 0.005  # deviation of a rate above its lower ceiling, in addition to the uncertainty of the ceilings
# amplitudes of the step's residuals, between neighbouring batch sizes and over octaves: an affine law errs by 6 % in the
# median and by 16 % at 90 % on real GPUs (tests/benchmarks/curves.py)
_STEP_AMPLITUDES = (Amplitude(0.02, 0.7), Amplitude(0.04, 0.8))
_STEP_LENGTH_SCALES_OCTAVES = (0.08, 1.0)  # length scales of the same two parts
_TILE_POWERS = 6  # multiples of 2^6 = 64 are the fastest batch sizes (assumed: hardware uses tiles of 64)
_LOSS_PER_POWER = 0.005  # log rate lost for each factor of 2 that a batch size lacks to such a multiple (assumed)
_QUEUE_SMOOTHING_BATCHES = 10.0  # queue size that doubles k (assumed, not measured)
_DIFFERENCE = 1e-5  # step of a parameter's logarithm for a numerical derivative
_LEAST_SHARE = 1e-12  # of the cores: 0 has no logarithm
_BYTES_PER_SECOND = 0.5e9  # prior rate of pickling samples between processes (measured with large batches: 0.12e9)
_DRIFT = 0.2  # deviation of a parameter's logarithm between an earlier tune and this one
_CALL_SECONDS = 0.5e-3  # prior of what a call of the train function costs in Python (measured: 0.3 to 3 ms)
_UNINFORMED = 5.0  # prior deviation of a parameter that the first trial determines


class ThroughputSurrogate:
    """Predicts the rate of `fit` from one or more finished trials that have a rate.

    `warm_start` is the surrogate of an earlier tune of the same workload, whose parameters are the prior.
    """

    def __init__(
        self, trials: Sequence[Trial], context: SearchContext, warm_start: ThroughputSurrogate | None = None
    ) -> None:
        self._cores, self._on_cpu, self._takes_turns = context.cores, context.on_cpu, context.description.takes_turns
        self._at = ConfigArrays.of([t.config for t in trials], context.cores)
        measured = [t.measurement for t in trials]
        names = ("compute_samples_per_second", "input_samples_per_second", "samples_per_second")
        self._observed = np.log([[getattr(m, name) or math.nan for m in measured] for name in names])  # as in `log_rates`
        self._is_read = np.isfinite(self._observed)
        noises = np.array([[m.compute_noise, m.input_noise, m.rate_noise] for m in measured]).T
        self._noise = np.hypot(np.array([[_STEP_ERROR], [_INPUT_ERROR], [_FIT_ERROR]]), noises)
        self._step_noise = noises[0]
        self._prior, self._scale = self._priors(context)
        if warm_start is not None:
            self._prior = warm_start._parameters
            self._scale = np.sqrt(np.diag(warm_start._covariance) + _DRIFT**2)
        from scipy.optimize import least_squares  # loading takes a third of a second, which a stored result does not need

        solution = least_squares(self._misfit, self._prior, jac=self._jacobian, method="lm", xtol=1e-4, ftol=1e-4)
        self._parameters: Vector = solution.x
        slopes = self._jacobian(self._parameters)
        self._covariance: Matrix = np.linalg.inv(slopes.T @ slopes)
        self._step_residual = self._fit_step_residual()
        residuals = self._observed[2] - self._log_rates(self._at, self._step_off(self._at)[0])[2, 0]
        self._residual = Residual((_AMPLITUDE,), (self._at.coordinates() / _LENGTH_SCALES,), residuals, noises[2])

    def predict(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        """Predict the natural logarithm of samples per second of `fit` for each config, and its standard deviation."""
        step_off, step_deviation = self._step_off(configs)
        (step, inputs, fit), (step_slopes, _, fit_slopes) = self._with_slopes(self._parameters, configs, step_off)
        mean, deviation = self._residual.predict((configs.coordinates() / _LENGTH_SCALES,))
        below_ceiling = np.minimum(step, inputs) - fit - mean
        deviation = np.minimum(deviation, np.maximum(below_ceiling, 0.0) + _ABOVE_CEILING)
        gradients = fit_slopes.T
        from_parameters = np.einsum("ij,jk,ik->i", gradients, self._covariance, gradients)
        from_step = fit_slopes[0] / step_slopes[0] * step_deviation
        variance = from_parameters + np.square(from_step) + np.square(deviation)
        return fit + mean, np.sqrt(variance)

    def deviation_from(self, config: ConfigArrays, others: ConfigArrays) -> Vector:
        """Return the deviation of the difference in log rate between a config and others with other steps in a call.

        What makes the rate of the one config uncertain applies to the others as well, but for the cost of a call.
        """
        slopes = [self._with_slopes(self._parameters, at, self._step_off(at)[0])[1][2] for at in (config, others)]
        apart = (slopes[1] - slopes[0]).T
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", apart, self._covariance, apart)))

    def _fit_step_residual(self) -> Residual:
        """Fit the residuals of the step's rate, which show what batch sizes suit the hardware."""
        observed, is_read = self._observed[0], self._is_read[0]
        residuals = (observed - self._log_rates(self._at)[0, 0] - _roundness(self._at.batch))[is_read]
        points = _batch_points(self._at.batch[is_read])
        return Residual(_STEP_AMPLITUDES, points, residuals, self._step_noise[is_read])

    def _step_off(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        """Predict the error of the step's model in log rate, and its standard deviation."""
        sizes, positions = np.unique(configs.batch, return_inverse=True)
        mean, deviation = self._step_residual.predict(_batch_points(sizes))
        return (mean + _roundness(sizes))[positions], deviation[positions]

    def _priors(self, context: SearchContext) -> tuple[Vector, Vector]:
        """Return the prior means and standard deviations of the parameters' logarithms, in the order of `log_rates`."""
        cores, sample_bytes = context.cores, context.description.sample_bytes
        step, inputs, fit = self._observed[:, 0]
        step, inputs = (rate if np.isfinite(rate) else fit for rate in (step, inputs))
        pickle = sample_bytes / _BYTES_PER_SECOND if sample_bytes else 0.1 * math.exp(-inputs)
        step_seconds = self._at.batch[0] * math.exp(-step)
        call = min(_CALL_SECONDS, 0.5 * step_seconds * self._at.steps[0])
        without_call = step_seconds - call / self._at.steps[0]
        priors = [
            (math.log(without_call / (self._at.batch[0] + 16.0)), _UNINFORMED),  # t1
            (math.log(16.0), 1.5),  # t0/t1
            (-inputs, _UNINFORMED),  # p1
            (math.log(0.5), 2.0),  # p0/p1
            (math.log(0.6 * cores), 1.5),  # g
            (math.log(0.9 * cores), 0.4),  # G
            (math.log(pickle), 1.5),  # x
            (math.log(pickle), 1.5),  # r
            (math.log(5.0), 0.5),  # k
            (0.0, _AUTO_DEVIATION),  # a
            (math.log(4.0), 1.0),  # s (measured, tests/benchmarks/tables: 4 for two cores, 1 for a disk)
            (math.log(call), 1.2),  # h
            (0.0, 1.0),  # c (assumed)
        ]
        means, deviations = np.array(priors, float).T
        return means, deviations

    def _misfit(self, parameters: Vector) -> Vector:
        predicted = self._log_rates(self._at, parameters=parameters[None])[:, 0]
        errors = ((predicted - self._observed) / self._noise)[self._is_read]
        return np.concatenate([errors, (parameters - self._prior) / self._scale])

    def _jacobian(self, parameters: Vector) -> Matrix:
        _, slopes = self._with_slopes(parameters, self._at)
        rows = np.swapaxes(slopes / self._noise[:, None], 1, 2)[self._is_read]
        return np.concatenate([rows, np.diag(1 / self._scale)])

    def _log_rates(self, configs: ConfigArrays, step_off: Matrix | float = 0.0, parameters: Matrix | None = None) -> Matrix:
        """Return the log rates with the fitted parameters, or with one or more other sets of parameters."""
        sets = self._parameters[None] if parameters is None else parameters
        taken = np.minimum(configs.workers, self._cores) / self._cores if self._on_cpu else 0.0
        return log_rates(sets, configs, step_off, taken, takes_turns=self._takes_turns)

    def _with_slopes(
        self, parameters: Vector, configs: ConfigArrays, step_off: Matrix | float = 0.0
    ) -> tuple[Matrix, Matrix]:
        """Return the three log rates, and their derivatives by forward differences with one row for each parameter."""
        shifted = np.vstack([parameters, parameters + _DIFFERENCE * np.eye(len(parameters))])
        rates = self._log_rates(configs, step_off, shifted)
        return rates[:, 0], (rates[:, 1:] - rates[:, :1]) / _DIFFERENCE


def _batch_points(batch: Vector) -> tuple[Matrix, Matrix]:
    octaves = np.log2(batch)[:, None]
    return octaves / _STEP_LENGTH_SCALES_OCTAVES[0], octaves / _STEP_LENGTH_SCALES_OCTAVES[1]


def _roundness(batch: Vector) -> Vector:
    """Return the expected change of the step's log rate, 0 or negative, if a batch size lacks factors of 2."""
    size = batch.astype(int)
    twos = np.log2(size & -size)
    lacking = np.maximum(0.0, np.minimum(_TILE_POWERS, np.floor(np.log2(batch))) - twos)
    return np.asarray(-_LOSS_PER_POWER * lacking)


def log_rates(
    parameters: Matrix,
    configs: ConfigArrays,
    step_off: Matrix | float = 0.0,
    taken: Vector | float = 0.0,
    *,
    takes_turns: bool = False,
) -> Matrix:
    """Evaluate the models of the log rates of step, input and `fit`, as an array of shape (3, sets, configs).

    `parameters` are natural logarithms of t1, t0/t1, p1, p0/p1, g, G, x, r, k, a, s, h and c, of shape (sets, 13): times in
    seconds per sample, h in seconds, ratios of times in samples, capacities in workers. `step_off` is the known error of
    the model of the step, and is added to its log rate. `taken` is the share of the step's cores that workers take while
    they are busy. If `takes_turns`, they alternate without a queue.
    """
    columns = np.exp(parameters).T[:, :, None]
    t1, half, p1, p_half, threads, processes, pickle, receive, overlap, autotune, sharpness, call, active = columns
    step = step_off - np.log(t1 * (1 + half / configs.batch) + call / (configs.steps * configs.batch))
    busy = np.minimum(configs.workers, np.where(configs.queue > 0, configs.queue + 1, configs.workers))
    alone = p1 * (1 + p_half / configs.batch)
    shared = -np.logaddexp(-sharpness * np.log(busy), -sharpness * np.log(threads)) / sharpness
    shared = np.where(configs.queued, shared, 0.0) + np.where(configs.auto_workers, np.log(autotune), 0.0)
    by_processes = _least(_least(busy, processes) / (alone + pickle), 1 / receive)
    inputs = np.where(configs.processes, np.log(by_processes), shared - np.log(alone))
    k = overlap * (1 + np.minimum(configs.queue, 2 * _QUEUE_SMOOTHING_BATCHES) / _QUEUE_SMOOTHING_BATCHES)
    if takes_turns:
        k, taken = np.where(configs.queued, k, 1.0), np.where(configs.queued, taken, 0.0)
    beside = -np.logaddexp(-step, np.log(np.maximum(_LEAST_SHARE, active / (1 + active) * taken)) - inputs)
    return np.stack([step, inputs, -np.logaddexp(-k * beside, -k * inputs) / k])


def _least(a: Matrix, b: Matrix) -> Matrix:
    """Return a smooth minimum of two positive numbers: (a^-8 + b^-8)^(-1/8)."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    eighth = np.square(np.square(np.square(low / high)))
    return np.asarray(low / np.sqrt(np.sqrt(np.sqrt(1 + eighth))))
