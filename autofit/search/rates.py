"""Predict the rates of configs that have not run, by one Gaussian model of all rates read so far.

context, first trial ──> Law         log rates of step, input and fit as functions of a few
                                     parameters, with priors
rates that were read ──> Rates       the parameters, and smooth residuals of the law, updated
                                     together
configs ───────────────> Prediction  log rates of fit, their deviations, and the deviation of any
                                     difference
"""

# Rates are those of epochs where the gap between epochs was read, and predicted ones if it was read
# at all.
#
# Everything unknown is Gaussian around the best fit (iterated linearization, as in the extended
# Kalman filter), with each error counted once. One covariance therefore gives the deviation of a
# config's rate, and also that of the difference of two configs. Only the difference decides whether
# one may be faster: a trial cannot resolve what makes both uncertain.

from __future__ import annotations

import collections
import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autofit.records.trial import Trial, noise_of
from autofit.search.context import (
    ConfigArrays,
    Indices,
    Mask,
    Matrix,
    SearchContext,
    Vector,
)

# All noises, amplitudes and deviations are standard deviations of natural logarithms (0.03 is 3 %).

# errors of the law of step, input and fit that no residual covers
_LAW_NOISE = np.array((0.01, 0.05, 0.0))
# noise between runs, which a run's spread does not show (measured on GPUs: 0.3 to 10 %)
_GPU_RUN_NOISE = 0.03
_CPU_RUN_NOISE = 0.08
# noise of step, input and fit on a CPU, beside that between runs (measured: the same configs twice
# to four times, tests/benchmarks/tables.py)
_CPU_NOISE = np.array((0.08, 0.08, 0.0))
# factors of the noise between runs, of which the likeliest is taken, and their prior deviation: few
# configs run twice, so that the readings alone hardly tell noise from what the law lacks
_RUN_FACTORS = (0.3, 1.0, 3.0)
_RUN_DEVIATION = 0.5
# amplitudes of the step's residuals by their length scales in octaves, between neighbouring batch
# sizes and over octaves: an affine law errs by 6 % in the median and by 16 % at 90 % on real GPUs
# (tests/benchmarks/curves.py)
_STEP_AMPLITUDES = {0.08: 0.02, 1.0: 0.05}
_FIT_AMPLITUDE = 0.04
# errors of the law of the input, of which the likelier is taken: its rate may fall with the batch
# size, for example where batches outgrow a cache. Without one, the noise that all rates of a run
# share explains such a fall, and moves the rate of fit.
_INPUT_ERRORS = (0.0, 0.3)
# amplitude of the residual of fit where the step bounds the rate
_ABOVE_CEILING = 0.005
# factors of all amplitudes, of which the likeliest is taken, and their prior deviation; those below
# 1 end a search early whose readings the law fits (1.1 ± 0.3 trials fewer on the machines of
# tests/benchmarks/surfaces.py, with equal regret)
_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
_SCALE_DEVIATION = 0.7
# multiples of 2^6 = 64 are the fastest batch sizes (assumed: hardware uses tiles of 64)
_TILE_POWERS = 6
# log rate lost for each factor of 2 that a batch size lacks to such a multiple (assumed)
_LOSS_PER_POWER = 0.005
# queue size that doubles k (assumed)
_QUEUE_SMOOTHING_BATCHES = 10.0
# prior of pickling samples between processes (measured with large batches: 0.12e9)
_PICKLED_BYTES_PER_SECOND = 0.5e9
# prior deviation of a parameter that the first trial determines
_UNINFORMED = 5.0
# deviation of the rates of step and input between an earlier tune and this one
_DRIFT = 0.2
# of the cores: 0 has no logarithm
_LEAST_SHARE = 1e-12
# step of a logarithm for a numerical derivative
_DIFFERENCE = 1e-5
_MOST_UPDATES = 30
# relative gain of an update at which the fit ends
_SETTLED = 1e-5
# an update that does not lower the misfit is halved up to nine times
_SHARES_OF_UPDATE = [0.5**halvings for halvings in range(10)]


# The parameters of `Law`, which are logarithms. Each is a Gaussian prior, with a mean and a
# deviation, or has values of shape (sets, 1).
_Parameters = collections.namedtuple(
    "_Parameters",
    "t t0 h p p0 g g_processes x r s k auto activity step_drift input_drift a c",
)


def run_noise(context: SearchContext) -> float:
    """Return the standard deviation between runs that a run's spread does not show."""
    return _CPU_RUN_NOISE if context.on_cpu else _GPU_RUN_NOISE


class Law:
    """Log rates of step, input and fit as functions of `_Parameters`."""

    # step     1/R = t·(1 + t0/b) + C             b samples in a batch
    # input    1/R = p·(1 + p0/b) / n + C         n busy threads, up to a capacity g (the GIL, the
    #                                             disk, the cores)
    #              = (p·(1 + p0/b) + x) / n + C   n busy processes, up to g_processes; pickling a
    #                                             sample takes x
    #              ≥ r                            receiving a sample from a process takes r
    # call     C = h/(N·b)                        Python's h is spent once a call of N steps
    #            = h/(N·b) + s                    stacking a sample takes s, where a call stacks its
    #                                             batches (measured on JAX: 0.45e9 bytes a second)
    # fit      1/R = (1/R_step^k + 1/R_input^k)^(1/k)
    #                                             k = 1: they alternate; large k: the slower one
    #                                             limits
    #          R_step                             on a CPU, busy workers take cores from the step,
    #                                             except while they wait
    # epoch    1/R = 1/R_fit + (a + c·n + B)/S    n processes start in an epoch of S samples; its
    #                                             first batch takes B
    #
    # Smooth functions replace minima, so that the rates have slopes. What the law leaves over is
    # modelled by smooth residuals: of the step over batch sizes (plateaus, dips, declines), and of
    # `fit` over all knobs, as far as the step alone does not bound the rate.

    def __init__(self, first: Trial, context: SearchContext) -> None:
        measured = first.measurement
        batch = first.config.batch_size or 1
        fit = measured.samples_per_second or 1.0
        step = measured.compute_samples_per_second or fit
        inputs = measured.input_samples_per_second or fit
        sample_bytes = context.description.sample_bytes
        # without the bytes of a sample, a tenth of the seconds in which it is made
        copying = (
            math.log(sample_bytes / _PICKLED_BYTES_PER_SECOND or 0.1 / inputs),
            1.5,
        )
        prior = _Parameters(
            t=(math.log(batch / step / (batch + 16)), _UNINFORMED),
            t0=(math.log(16), 1.5),
            # what a call of the train function costs in Python (measured: 0.3 to 3 ms)
            h=(math.log(0.5e-3), 1.2),
            p=(-math.log(inputs), _UNINFORMED),
            p0=(math.log(0.5), 2.0),
            g=(math.log(0.6 * context.cores), 1.5),
            g_processes=(math.log(0.9 * context.cores), 0.4),
            x=copying,
            r=copying,
            s=copying,
            k=(math.log(5), 0.5),
            # the input with AUTOTUNE, relative to one thread per core
            auto=(0.0, 0.2),
            # of busy workers on a CPU, as the odds that one computes instead of waiting
            activity=(0.0, 1.0),
            # of the rates in an earlier tune
            step_drift=(0.0, _DRIFT),
            input_drift=(0.0, _DRIFT),
            # seconds of a gap between epochs, and of a process that starts in it
            a=(math.log(0.03), 1.5),
            c=(math.log(0.05), 1.0),
        )
        self.mean, self.deviation = np.array(prior).T
        self.variances = np.square(self.deviation)
        self._context = context

    def log_rates(
        self, parameters: Matrix, configs: ConfigArrays, earlier: Mask, step_off: Matrix
    ) -> Matrix:
        """Return the log rates of step, input and fit, of shape (3, sets, configs).

        `parameters` has shape (sets, parameters). `earlier` marks the configs that ran in an
        earlier tune. `step_off` is the residual of the step, of shape (sets, configs).
        """
        theta = _Parameters(*parameters.T[:, :, None])
        call_seconds = np.exp(theta.h) / (configs.steps * configs.batch)
        if self._context.description.stacks_steps:
            call_seconds = call_seconds + np.exp(theta.s) * (configs.steps > 1)
        step_seconds = _sample_seconds(theta.t, theta.t0, configs) + call_seconds
        step = (
            step_off
            - _tile_loss(configs)
            - np.log(step_seconds)
            + theta.step_drift * earlier
        )
        made_seconds = _sample_seconds(theta.p, theta.p0, configs)
        made_seconds = made_seconds + np.exp(theta.x) * configs.processes
        inputs = _log_input(theta, configs, made_seconds, call_seconds)
        inputs = inputs + theta.input_drift * earlier
        steady = self._log_steady(theta, configs, step, inputs)
        starting_seconds = np.exp(theta.a) + np.exp(theta.c) * configs.worker_processes
        gap = np.log(starting_seconds + configs.batch * made_seconds)
        fit = -np.logaddexp(-steady, gap - np.log(configs.epoch_samples))
        return np.stack(np.broadcast_arrays(step, inputs, fit))

    def _log_steady(
        self, theta: _Parameters, configs: ConfigArrays, step: Matrix, inputs: Matrix
    ) -> Matrix:
        """Return the log rates of `fit` within an epoch; all arrays have shape (sets, configs)."""
        alternate = ~configs.queued & self._context.description.takes_turns
        if self._context.on_cpu:
            cores = self._context.cores
            taken = np.where(alternate, 0.0, np.minimum(configs.workers, cores) / cores)
            share = np.maximum(_LEAST_SHARE, taken / (1 + np.exp(-theta.activity)))
            step = -np.logaddexp(-step, np.log(share) - inputs)
        # a queue evens out variation, so k grows with its size
        batches = np.minimum(configs.queue, 2 * _QUEUE_SMOOTHING_BATCHES)
        sharpness = np.exp(theta.k) * (1 + batches / _QUEUE_SMOOTHING_BATCHES)
        return _softmin(step, inputs, np.where(alternate, 1.0, sharpness))

    def slopes(
        self, parameters: Vector, configs: ConfigArrays, earlier: Mask, step_off: Vector
    ) -> tuple[Matrix, Matrix, Matrix]:
        """Return log rates (3, configs), and their slopes by the parameters and by `step_off`.

        The slopes have the shapes (3, configs, parameters) and (3, configs).
        """
        each = parameters + _DIFFERENCE * np.eye(len(parameters))
        sets = np.vstack([parameters, each, parameters])
        step_offs = np.tile(step_off, (len(sets), 1))
        step_offs[-1] += _DIFFERENCE
        rates = self.log_rates(sets, configs, earlier, step_offs)
        slopes = (rates[:, 1:] - rates[:, :1]) / _DIFFERENCE
        by_parameter = slopes[:, :-1].swapaxes(1, 2)
        return rates[:, 0], by_parameter, slopes[:, -1]


def _sample_seconds(
    log_sample: Matrix, log_extra: Matrix, configs: ConfigArrays
) -> Matrix:
    """Return the seconds of a sample, where each batch takes as long as some extra samples more."""
    return np.exp(log_sample) * (1 + np.exp(log_extra) / configs.batch)


def _tile_loss(configs: ConfigArrays) -> Vector:
    """Return the log rate that the step loses where batches are not multiples of a tile."""
    size = configs.batch.astype(int)
    powers = np.log2(size & -size)
    lacking = np.minimum(_TILE_POWERS, np.floor(configs.octaves)) - powers
    return _LOSS_PER_POWER * np.maximum(0.0, lacking)


def _log_input(
    theta: _Parameters,
    configs: ConfigArrays,
    made_seconds: Matrix,
    call_seconds: Matrix,
) -> Matrix:
    """Return the log rates of the input alone; all arrays have shape (sets, configs)."""
    # workers beyond max_queue_size + 1 are idle
    most = np.where(configs.queue > 0, configs.queue + 1, configs.workers)
    workers = np.log(np.minimum(configs.workers, most))
    capacity = np.where(configs.processes, theta.g_processes, theta.g)
    busy = np.where(configs.queued, _softmin(workers, capacity, 4.0), 0.0)
    busy = busy + theta.auto * configs.auto_workers
    # what a call costs in Python is spent without the workers, too
    rates = -np.logaddexp(np.log(made_seconds) - busy, np.log(call_seconds))
    return np.where(configs.processes, _softmin(rates, -theta.r, 8.0), rates)


class _Rows(NamedTuple):
    """Log rates as linear functions of all that is unknown, with a row for each rate.

    The unknowns are the parameters, with these `slopes`; the step's residual, with the slope
    `by_step`, over `octaves`; and the residual of fit, whose standard deviation is `height`, over
    `points`.
    """

    slopes: Matrix
    by_step: Vector
    height: Vector
    octaves: Vector
    points: Matrix

    def of(self, rates: Indices) -> _Rows:
        """Return the rows of some rates."""
        return _Rows(*(values[rates] for values in self))

    def covariance(self, other: _Rows, variances: Vector) -> Matrix:
        """Return the covariance with other rates; `variances` are those of the parameters."""
        of_step = _step_covariance(self.octaves, other.octaves)
        of_step = np.outer(self.by_step, other.by_step) * of_step
        of_parameters = (self.slopes * variances) @ other.slopes.T
        return of_parameters + of_step + self.covariance_of_fit(other)

    def covariance_of_fit(self, other: _Rows) -> Matrix:
        """Return the covariance of the residual of fit."""
        heights = np.outer(self.height, other.height)
        return heights * _correlation(self.points, other.points)


class Prediction(NamedTuple):
    """The predicted log rates of `fit` (samples per second) of several configs, with deviations.

    `noise` is the standard deviation of one more reading of such a rate.
    """

    mean: Vector
    deviation: Vector
    noise: float
    rows: _Rows
    explained: Matrix
    variances: Vector

    def covariance(self, first: Indices, second: Indices) -> Matrix:
        """Return the covariance of the log rates of some configs with those of others."""
        prior = self.rows.of(first).covariance(self.rows.of(second), self.variances)
        explained = self.explained[:, first].T @ self.explained[:, second]
        return prior - explained

    def lead_over(self, index: int) -> tuple[Vector, Vector]:
        """Return each config's lead over one of them, in log rate, and the lead's deviation."""
        everything = np.arange(len(self.mean))
        shared = self.covariance(everything, np.array([index]))[:, 0]
        variance = np.square(self.deviation) + self.deviation[index] ** 2 - 2 * shared
        return self.mean - self.mean[index], np.sqrt(np.maximum(variance, 0.0))


class _Readings:
    """The rates that trials of this tune and of an earlier one read, as arrays.

    `at` are the configs that ran, and `earlier` marks those of the earlier tune. `is_read`, of
    shape (3, configs), tells which rates of step, input and fit were read. Arrays with an entry for
    each of these are `values`, the log rates; `trial`, the index of the config; `is_input` and
    `is_fit`. `own_noise` is a diagonal matrix of their variances. `epoch_samples` are those of the
    longest epoch whose gap was read.
    """

    def __init__(self, trials: Sequence[Trial], context: SearchContext) -> None:
        everything = [*trials, *rated_trials(context.warm_start)]
        measured = [trial.measurement for trial in everything]
        self.law = Law(everything[0], context)
        # a rate without the gap before an epoch is that of an endless one
        samples = [
            (each.epoch_gap_seconds is not None and each.epoch_samples) or math.inf
            for each in measured
        ]
        charged = np.array(samples, float)
        self.epoch_samples = max(charged[np.isfinite(charged)], default=math.inf)
        configs = [trial.config for trial in everything]
        self.at = ConfigArrays(configs, context.cores, charged)
        self.earlier = np.arange(len(everything)) >= len(trials)
        # without what another trial read, and the rate of `fit` once more
        rates = [
            (
                (each.compute_is_read and each.compute_samples_per_second) or math.nan,
                (each.input_is_read and each.input_samples_per_second) or math.nan,
                each.samples_per_second or math.nan,
            )
            for each in measured
        ]
        values = np.log(rates).T
        self.is_read = np.isfinite(values)
        self.values = values[self.is_read]
        kind, self.trial = np.nonzero(self.is_read)
        self.is_input = kind == 1
        self.is_fit = kind == 2
        spreads = [
            (each.compute_spread, each.input_spread, each.spread) for each in measured
        ]
        variances = np.square(
            [[noise_of(spread) for spread in row] for row in spreads]
        ).T
        of_law = np.square(_LAW_NOISE)
        self.run_noise = run_noise(context)
        if context.on_cpu:
            of_law = of_law + np.square(_CPU_NOISE)
        self.own_noise = np.diag((variances + of_law[:, None])[self.is_read])

    def sum_by_config(self, values: Vector) -> Any:
        return np.bincount(self.trial, values, len(self.at))


class _State(NamedTuple):
    """The parameters, and the coefficients of both residuals for each trial."""

    parameters: Vector
    of_step: Vector
    of_fit: Vector


class _Update(NamedTuple):
    """The law linearized at a state, and the state to which that leads.

    `root` is the Cholesky factor of the covariance of the readings, `weights` are those of the
    readings in a prediction, and `distance` is the square of how far the readings are from the
    prior, in standard deviations.
    """

    rows: _Rows
    root: Matrix
    weights: Vector
    distance: float
    target: _State


class _Fit(NamedTuple):
    """Parameters and residuals that explain the readings, with the last update that led to them.

    `noise` is the covariance of the readings' errors, and `shares` are those of
    `_share_below_ceiling`.
    """

    parameters: Vector
    last: _Update
    evidence: float
    scale: float
    noise: Matrix
    shares: Vector


class _Fitting:
    """Fits parameters and residuals together to the readings, for errors of given sizes.

    `scale` is the factor of the amplitudes, and `run_factor` that of the noise between runs.
    Covariances have a row and a column for each config that ran, and the noise for each reading.
    """

    def __init__(
        self,
        readings: _Readings,
        shares: Vector,
        scale: float = 1.0,
        run_factor: float = 1.0,
        input_error: float = 0.0,
    ) -> None:
        self._readings = readings
        self._scale = scale
        self._unlikely = (math.log(scale) / _SCALE_DEVIATION) ** 2
        self._unlikely += (math.log(run_factor) / _RUN_DEVIATION) ** 2
        at = readings.at
        of_runs = (run_factor * readings.run_noise) ** 2
        same_run = readings.trial[:, None] == readings.trial
        of_input = np.diag(np.square(input_error * readings.is_input))
        self._noise = readings.own_noise + of_runs * same_run + of_input
        self._heights = scale * _FIT_AMPLITUDE * shares
        self._points = at.coordinates / at.lengths
        self._step_covariance = scale**2 * _step_covariance(at.octaves, at.octaves)
        heights = np.outer(self._heights, self._heights)
        self._fit_covariance = heights * _correlation(self._points, self._points)

    def fit(self, parameters: Vector) -> _Fit:
        """Update the parameters until that hardly lowers the misfit."""
        none = np.zeros(len(self._readings.at))
        state = _State(parameters, none, none)
        misfit = self._misfit(state)
        for _ in range(_MOST_UPDATES):
            before = misfit
            update = self._linearize(state)
            for share in _SHARES_OF_UPDATE:
                pairs = zip(state, update.target, strict=True)
                moved = _State(*(old + share * (new - old) for old, new in pairs))
                now = self._misfit(moved)
                if now < before:
                    state = moved
                    misfit = now
                    break
            if misfit >= before - _SETTLED * max(1.0, before):
                break
        # the evidence is that of the last linearization (Rasmussen and Williams, Gaussian Processes
        # for Machine Learning, algorithm 2.1)
        half_log_determinant = np.log(np.diag(update.root)).sum()
        evidence = -0.5 * (update.distance + self._unlikely) - half_log_determinant
        shares = _share_below_ceiling(self._log_rates(state))
        return _Fit(
            state.parameters, update, evidence, self._scale, self._noise, shares
        )

    def _log_rates(self, state: _State) -> Matrix:
        """Return the log rates without the residual of fit, of shape (3, configs)."""
        step_off = (self._step_covariance @ state.of_step)[None]
        readings = self._readings
        parameters = state.parameters[None]
        rates = readings.law.log_rates(
            parameters, readings.at, readings.earlier, step_off
        )
        return rates[:, 0]

    def _misfit(self, state: _State) -> float:
        """Return the negative log density of readings and state, without its constants."""
        readings = self._readings
        law = readings.law
        residual = (self._fit_covariance @ state.of_fit)[
            readings.trial
        ] * readings.is_fit
        errors = readings.values - self._log_rates(state)[readings.is_read] - residual
        of_prior = (
            np.square((state.parameters - law.mean) / law.deviation).sum()
            + state.of_step @ self._step_covariance @ state.of_step
            + state.of_fit @ self._fit_covariance @ state.of_fit
        )
        return 0.5 * (errors @ np.linalg.solve(self._noise, errors) + of_prior)

    def _linearize(self, state: _State) -> _Update:
        """Linearize the law at a state, and find the likeliest state by that."""
        readings = self._readings
        law = readings.law
        trial = readings.trial
        step_off = self._step_covariance @ state.of_step
        rates, slopes, by_step = law.slopes(
            state.parameters, readings.at, readings.earlier, step_off
        )
        slopes = slopes[readings.is_read]
        by_step = by_step[readings.is_read]
        rows = _Rows(
            slopes,
            self._scale * by_step,
            self._heights[trial] * readings.is_fit,
            readings.at.octaves[trial],
            self._points[trial],
        )
        root = np.linalg.cholesky(rows.covariance(rows, law.variances) + self._noise)
        moved = slopes @ (state.parameters - law.mean)
        prior = rates[readings.is_read] - moved - by_step * step_off[trial]
        errors = readings.values - prior
        weights = np.linalg.solve(root.T, np.linalg.solve(root, errors))
        target = _State(
            law.mean + law.variances * (slopes.T @ weights),
            readings.sum_by_config(by_step * weights),
            readings.sum_by_config(readings.is_fit * weights),
        )
        return _Update(rows, root, weights, errors @ weights, target)


class Rates:
    """Predicts log rates from trials that have a rate, and from those of an earlier tune."""

    def __init__(self, trials: Sequence[Trial], context: SearchContext) -> None:
        self._readings = _Readings(trials, context)
        # a first fit shows which trials the step alone bounds: the residual of fit is small there
        everywhere = np.ones(len(self._readings.at))
        first = _Fitting(self._readings, everywhere).fit(self._readings.law.mean)
        # all errors at once: where the residuals may not grow, a decline at large batches reads as
        # noise
        fits = (
            _Fitting(self._readings, first.shares, *errors).fit(first.parameters)
            for errors in itertools.product(_SCALES, _RUN_FACTORS, _INPUT_ERRORS)
        )
        self._best = max(fits, key=lambda fit: fit.evidence)

    def predict(self, configs: ConfigArrays) -> Prediction:
        """Predict the log rates of `fit`, over epochs if gaps between them were read."""
        configs = copy.copy(configs)
        configs.epoch_samples = self._readings.epoch_samples
        best = self._best
        law = self._readings.law
        ran = best.last.rows
        weights = best.last.weights
        step_covariance = _step_covariance(configs.octaves, ran.octaves)
        step_off = best.scale * step_covariance @ (ran.by_step * weights)
        now = np.zeros(len(configs), bool)
        rates, slopes, by_step = law.slopes(best.parameters, configs, now, step_off)
        rows = _Rows(
            slopes[2],
            best.scale * by_step[2],
            best.scale * _FIT_AMPLITUDE * _share_below_ceiling(rates),
            configs.octaves,
            configs.coordinates / configs.lengths,
        )
        mean = rates[2] + rows.covariance_of_fit(ran) @ weights
        explained = np.linalg.solve(
            best.last.root, rows.covariance(ran, law.variances).T
        )
        of_parameters = np.square(rows.slopes) @ law.variances
        variance = of_parameters + np.square(rows.height) - np.square(explained).sum(0)
        variance += (
            np.square(rows.by_step) * np.square([*_STEP_AMPLITUDES.values()]).sum()
        )
        deviation = np.sqrt(np.maximum(variance, 0.0))
        noise = math.sqrt(np.median(np.diag(best.noise)[self._readings.is_fit]))
        return Prediction(mean, deviation, noise, rows, explained, law.variances)


def rated_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have a rate."""
    return [trial for trial in trials if trial.samples_per_second]


def _softmin(a: Matrix | Vector, b: Matrix, sharpness: Matrix | float) -> Matrix:
    return -np.logaddexp(-sharpness * a, -sharpness * b) / sharpness


def _share_below_ceiling(rates: Matrix) -> Vector:
    """Return the share of its amplitude that the residual of fit has, by log rates (3, configs).

    It is little where the step, with its own residual, is the bound.
    """
    step, _, fit = rates
    below = np.maximum(step - fit, 0.0) + _ABOVE_CEILING
    return np.minimum(1.0, below / _FIT_AMPLITUDE)


def _correlation(points: Matrix, others: Matrix) -> Matrix:
    """Return the correlations of a residual at points that are rows: a squared exponential."""
    squares = np.square(points).sum(1)[:, None] + np.square(others).sum(1)
    squares -= 2 * points @ others.T
    return np.exp(-0.5 * np.maximum(squares, 0.0))


def _step_covariance(octaves: Vector, others: Vector) -> Matrix:
    """Return the covariances of the step's residual between two lists of batch sizes."""
    apart = np.square(octaves[:, None] - others)
    parts = [
        amplitude**2 * np.exp(-0.5 * apart / length**2)
        for length, amplitude in _STEP_AMPLITUDES.items()
    ]
    return np.sum(parts, axis=0)
