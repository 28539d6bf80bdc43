"""Predict the rates of configs that have not run, with one Gaussian model of all rates that were read.

context, first trial ──> Law          log rates of step, input and fit as functions of a few parameters, with priors
rates that were read ──> Rates        the parameters, and smooth residuals of the law, updated together
configs ───────────────> Prediction   log rates of fit, their deviations, and the deviation of any difference
"""

# Rates are those of epochs where the gap between epochs was read, and predicted ones if it was read at all.
#
# Everything unknown is Gaussian around the best fit (iterated linearization, as in the extended Kalman filter), with each
# error counted once. One covariance therefore gives the deviation of a config's rate, and also that of the difference of
# two configs. Only the difference decides whether one may be faster: a trial cannot resolve what makes both uncertain.

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autofit.records.trial import Trial, noise_of
from autofit.search.context import ConfigArrays, Indices, Mask, Matrix, SearchContext, Vector

# All noises, amplitudes and deviations are standard deviations of natural logarithms (0.03 is 3%).
_LAW_NOISE = np.array(
    (0.01, 0.05, 0.0)
)  # errors of the law of step, input and fit that no residual covers
# noise between runs, which a run's spread does not show, on a GPU (measured: 0.3 to 10%) and on a CPU; and that of step
# and input alone on a CPU, beside that (measured: the same configs twice to four times, tests/benchmarks/tables.py)
_RUN_NOISE, _ALONE_NOISE = (0.03, 0.08), np.array((0.08, 0.08, 0.0))
# factors of the noise between runs, of which the likeliest is taken, and their prior deviation: few configs run twice, so
# that the readings alone hardly tell noise from what the law lacks
_RUN_FACTORS, _RUN_DEVIATION = (0.3, 1.0, 3.0), 0.5
# amplitudes and length scales of the step's residuals, between neighbouring batch sizes and over octaves: an affine law
# errs by 6% in the median and by 16% at 90% on real GPUs (tests/benchmarks/curves.py)
_STEP_AMPLITUDES, _STEP_LENGTHS_OCTAVES = (0.02, 0.05), (0.08, 1.0)
_FIT_AMPLITUDE = 0.04
# errors of the law of the input, of which the likelier is taken: its rate may fall with the batch
# size, for example where batches outgrow a cache. Without one, the noise that all rates of a run
# share explains such a fall, and moves the rate of fit.
_INPUT_ERRORS = (0.0, 0.3)
_ABOVE_CEILING = 0.005  # amplitude of these where the step bounds the rate
# factors of all amplitudes, of which the likeliest is taken, and their prior deviation; those below 1 end a search early
# whose readings the law fits (1.1 ± 0.3 trials fewer on the machines of tests/benchmarks/surfaces.py, with equal regret)
_SCALES, _SCALE_DEVIATION = (0.25, 0.5, 1.0, 2.0, 4.0), 0.7
_TILE_POWERS = (
    6  # multiples of 2^6 = 64 are the fastest batch sizes (assumed: hardware uses tiles of 64)
)
_LOSS_PER_POWER = (
    0.005  # log rate lost for each factor of 2 that a batch size lacks to such a multiple (assumed)
)
_QUEUE_SMOOTHING_BATCHES = 10.0  # queue size that doubles k (assumed, not measured)
_PICKLED_BYTES_PER_SECOND = (
    0.5e9  # prior of pickling samples between processes (measured with large batches: 0.12e9)
)
_CALL_SECONDS = (
    0.5e-3  # prior of what a call of the train function costs in Python (measured: 0.3 to 3 ms)
)
_GAP_SECONDS, _PROCESS_SECONDS = (
    0.03,
    0.05,
)  # priors of a gap between epochs, and of a process that starts in it
_UNINFORMED = 5.0  # prior deviation of a parameter that the first trial determines
_DRIFT = 0.2  # deviation of the rates of step and input between an earlier tune and this one
_LEAST_SHARE = 1e-12  # of the cores: 0 has no logarithm
_DIFFERENCE = 1e-5  # step of a logarithm for a numerical derivative
_MOST_UPDATES, _SETTLED = 30, 1e-5  # of the linearization; the last is a relative gain
_SHARES_OF_UPDATE = [0.5**halvings for halvings in range(10)]


class Law:
    """Log rates of step, input and fit; the parameters are logarithms with a Gaussian prior, in the order given here."""

    # step     1/R = t·(1 + t0/b) + C             b samples in a batch
    # input    1/R = p·(1 + p0/b) / n + C         n busy threads, up to a capacity g (the GIL, the
    #                                             disk, the cores)
    #              = (p·(1 + p0/b) + x) / n + C   n busy processes, up to a capacity G; pickling a
    #                                             sample takes x
    #              ≥ r                            receiving a sample from a process takes r
    # call     C = h/(N·b)                        Python's h is spent once a call of N steps
    #            = h/(N·b) + s                    stacking a sample takes s, where a call stacks its
    #                                             batches (measured on JAX: 0.45e9 bytes a second)
    # fit      1/R = (1/R_step^k + 1/R_input^k)^(1/k)    k = 1: they alternate; large k: the slower one limits
    #          R_step: on a CPU, busy workers take cores from the step, except while they wait
    # epoch    1/R = 1/R_fit + (a + c·n + B)/S           n processes start in an epoch of S samples; its first batch takes B
    #
    # Workers beyond max_queue_size + 1 are idle. A queue evens out variation, so k grows with its size. Smooth functions
    # replace minima, so that the rates have slopes. What the law leaves over is modelled by smooth residuals: of the step
    # over batch sizes (plateaus, dips, declines), and of `fit` over all knobs, as far as the step alone does not bound the
    # rate.

    def __init__(self, first: Trial, context: SearchContext) -> None:
        measured, batch, cores = first.measurement, first.config.batch_size or 1, context.cores
        fit = measured.samples_per_second or 1.0
        step, inputs = (
            measured.compute_samples_per_second or fit,
            measured.input_samples_per_second or fit,
        )
        sample_bytes = context.description.sample_bytes
        pickle = math.log(
            sample_bytes / _PICKLED_BYTES_PER_SECOND if sample_bytes else 0.1 / inputs
        )
        prior = (
            (math.log(batch / step / (batch + 16)), _UNINFORMED),  # t
            (math.log(16), 1.5),  # t0
            (math.log(_CALL_SECONDS), 1.2),  # h
            (-math.log(inputs), _UNINFORMED),  # p
            (math.log(0.5), 2.0),  # p0
            (math.log(0.6 * cores), 1.5),  # g
            (math.log(0.9 * cores), 0.4),  # G
            (pickle, 1.5),  # x
            (pickle, 1.5),  # r
            (pickle, 1.5),  # s
            (math.log(5), 0.5),  # k
            (0.0, 0.2),  # the input with AUTOTUNE, relative to one thread per core
            (
                0.0,
                1.0,
            ),  # activity of busy workers on a CPU, as the odds that one computes instead of waiting
            (0.0, _DRIFT),  # the step in an earlier tune
            (0.0, _DRIFT),  # the input in an earlier tune
            (math.log(_GAP_SECONDS), 1.5),  # a
            (math.log(_PROCESS_SECONDS), 1.0),  # c
        )
        self.mean, self.deviation = np.array(prior, float).T
        self._cores, self._on_cpu = cores, context.on_cpu
        self._takes_turns = context.description.takes_turns
        self._stacks_steps = context.description.stacks_steps

    def log_rates(
        self, parameters: Matrix, configs: ConfigArrays, earlier: Mask, step_off: Matrix
    ) -> Matrix:
        """Return the log rates of step, input and fit, of shape (3, sets, configs).

        `parameters` has shape (sets, parameters). `earlier` marks the configs that ran in an earlier tune. `step_off` is
        the residual of the step, of shape (sets, configs).
        """
        t, t0, h, p, p0, g, capacity, x, r, s, k, auto, active, step_drift, input_drift, a, c = (
            parameters.T[:, :, None]
        )
        call = np.exp(h) / (configs.steps * configs.batch)
        if self._stacks_steps:
            call = call + np.exp(s) * (configs.steps > 1)
        seconds = np.exp(t) * (1 + np.exp(t0) / configs.batch) + call
        size = configs.batch.astype(int)
        lacking = np.minimum(_TILE_POWERS, np.floor(configs.octaves)) - np.log2(
            size & -size
        )  # factors of 2
        step = (
            step_off
            - _LOSS_PER_POWER * np.maximum(0.0, lacking)
            - np.log(seconds)
            + step_drift * earlier
        )
        busy = np.log(
            np.minimum(
                configs.workers, np.where(configs.queue > 0, configs.queue + 1, configs.workers)
            )
        )
        shared = _softmin(busy, np.where(configs.processes, capacity, g), 4.0)
        shared = np.where(configs.queued, shared, 0.0) + auto * configs.auto_workers
        # a sample, in seconds; what a call costs in Python is spent without the workers, too
        made = np.exp(p) * (1 + np.exp(p0) / configs.batch) + np.exp(x) * configs.processes
        inputs = -np.logaddexp(np.log(made) - shared, np.log(call))
        inputs = (
            np.where(configs.processes, _softmin(inputs, -r, 8.0), inputs) + input_drift * earlier
        )
        smoothing = (
            np.minimum(configs.queue, 2 * _QUEUE_SMOOTHING_BATCHES) / _QUEUE_SMOOTHING_BATCHES
        )
        sharpness, beside = np.exp(k) * (1 + smoothing), step
        alternate = ~configs.queued & self._takes_turns
        if self._on_cpu:
            taken = np.where(alternate, 0.0, np.minimum(configs.workers, self._cores) / self._cores)
            share = np.maximum(_LEAST_SHARE, taken / (1 + np.exp(-active)))
            beside = -np.logaddexp(-step, np.log(share) - inputs)
        fit = _softmin(beside, inputs, np.where(alternate, 1.0, sharpness))
        gap = np.log(np.exp(a) + np.exp(c) * configs.worker_processes + configs.batch * made)
        fit = -np.logaddexp(-fit, gap - np.log(configs.epoch_samples))
        return np.stack(np.broadcast_arrays(step, inputs, fit))

    def slopes(
        self, parameters: Vector, configs: ConfigArrays, earlier: Mask, step_off: Vector
    ) -> tuple[Matrix, ...]:
        sets = np.vstack(
            [parameters, parameters + _DIFFERENCE * np.eye(len(parameters)), parameters]
        )
        offs = np.tile(step_off, (len(sets), 1))
        offs[-1] += _DIFFERENCE
        rates = self.log_rates(sets, configs, earlier, offs)
        moved = (rates[:, 1:] - rates[:, :1]) / _DIFFERENCE
        return rates[:, 0], moved[:, :-1].swapaxes(1, 2), moved[:, -1]


class _Rows(NamedTuple):
    """Log rates as linear functions of all that is unknown, with a row for each rate."""

    # The unknowns are the parameters, with these `slopes`; the step's residual, with the slope `by_step`, over `octaves`;
    # and the residual of fit, whose standard deviation is `height`, over `points`.
    slopes: Matrix
    by_step: Vector
    height: Vector
    octaves: Vector
    points: Matrix

    def covariance(self, other: _Rows, variances: Vector) -> Matrix:
        of_step = np.outer(self.by_step, other.by_step) * _step_covariance(
            self.octaves, other.octaves
        )
        of_fit = np.outer(self.height, other.height) * _correlation(self.points, other.points)
        return np.asarray((self.slopes * variances) @ other.slopes.T + of_step + of_fit)


class Prediction(NamedTuple):
    """The predicted log rates of `fit` (samples per second) of several configs, and their standard deviations."""

    mean: Vector
    deviation: Vector
    noise: float  # the standard deviation of one more reading of such a rate
    rows: _Rows
    explained: Matrix
    variances: Vector

    def covariance(self, first: Indices, second: Indices) -> Matrix:
        """Return the covariance of the log rates of some configs with those of others."""
        one, other = (_Rows(*(values[at] for values in self.rows)) for at in (first, second))
        known = self.explained[:, first].T @ self.explained[:, second]
        return np.asarray(one.covariance(other, self.variances) - known)

    def lead_over(self, index: int) -> tuple[Vector, Vector]:
        """Return the lead of each config over one of them, in log rate, and the standard deviation of the difference."""
        shared = self.covariance(np.arange(len(self.mean)), np.array([index]))[:, 0]
        variance = np.square(self.deviation) + self.deviation[index] ** 2 - 2 * shared
        return self.mean - self.mean[index], np.sqrt(np.maximum(variance, 0.0))


class _Fit:
    """Parameters and residuals, fitted together: Gaussian updates of the law, linearized at the last fit."""

    # `scale` is the factor of the amplitudes, `run_factor` that of the noise between runs. An update that does not lower
    # the misfit is halved. The evidence is that of the last linearization (Rasmussen and Williams, Gaussian Processes for
    # Machine Learning, algorithm 2.1). `weights` are those of the readings in a prediction.
    parameters: Vector
    shares: Vector

    def __init__(
        self,
        readings: Rates,
        scale: float = 1.0,
        run_factor: float = 1.0,
        input_error: float = 0.0,
        first: _Fit | None = None,
    ) -> None:
        law, at, trial, is_fit = readings.law, readings.at, readings.trial, readings.is_fit
        variances, points = np.square(law.deviation), at.coordinates / at.lengths
        of_runs = (run_factor * readings.run_noise) ** 2
        of_input = np.diag(np.square(input_error * readings.is_input))
        self.noise = readings.own_noise + of_runs * (trial[:, None] == trial) + of_input
        self.scale = scale
        parameters, shares = law.mean, np.ones(len(at))
        if first is not None:
            parameters, shares = first.parameters, first.shares
        heights = self.scale * _FIT_AMPLITUDE * shares
        of_step = self.scale**2 * _step_covariance(at.octaves, at.octaves)
        of_fit = np.outer(heights, heights) * _correlation(points, points)

        def misfit(parameters: Vector, step: Vector, fit: Vector) -> float:
            rates = law.log_rates(parameters[None], at, readings.earlier, (of_step @ step)[None])[
                :, 0
            ][readings.is_read]
            errors = readings.values - rates - (of_fit @ fit)[trial] * is_fit
            of_prior = (
                np.square((parameters - law.mean) / law.deviation).sum()
                + step @ of_step @ step
                + fit @ of_fit @ fit
            )
            return float(0.5 * (errors @ np.linalg.solve(self.noise, errors) + of_prior))

        # the parameters, and the coefficients of both residuals for each trial
        state = parameters, np.zeros(len(at)), np.zeros(len(at))
        now = misfit(*state)
        for _ in range(_MOST_UPDATES):
            step_off = of_step @ state[1]
            rates, *both = law.slopes(state[0], at, readings.earlier, step_off)
            slopes, by_step = (values[readings.is_read] for values in both)
            rows = _Rows(
                slopes,
                self.scale * by_step,
                heights[trial] * is_fit,
                at.octaves[trial],
                points[trial],
            )
            root = np.linalg.cholesky(rows.covariance(rows, variances) + self.noise)
            errors = readings.values - (
                rates[readings.is_read] - slopes @ (state[0] - law.mean) - by_step * step_off[trial]
            )
            weights = np.linalg.solve(root.T, np.linalg.solve(root, errors))
            of_step_target, of_fit_target = (
                np.bincount(trial, by * weights, len(at)) for by in (by_step, is_fit)
            )
            target = law.mean + variances * (slopes.T @ weights), of_step_target, of_fit_target
            before, start = now, state
            for share in _SHARES_OF_UPDATE:
                state = tuple(
                    old + share * (new - old) for old, new in zip(start, target, strict=True)
                )
                now = misfit(*state)
                if now < before:
                    break
            else:
                state = start
            if now >= before - _SETTLED * max(1.0, before):
                break
        unlikely = (math.log(scale) / _SCALE_DEVIATION) ** 2
        unlikely += (math.log(run_factor) / _RUN_DEVIATION) ** 2
        self.evidence = float(-0.5 * (errors @ weights + unlikely) - np.log(np.diag(root)).sum())
        self.parameters, self.weights, self.root, self.rows = state[0], weights, root, rows
        rates = law.log_rates(state[0][None], at, readings.earlier, (of_step @ state[1])[None])[
            :, 0
        ]
        self.shares = _share_below_ceiling(rates)


class Rates:
    """Predicts the log rates of configs from finished trials that have a rate, and from those of an earlier tune."""

    def __init__(self, trials: Sequence[Trial], context: SearchContext) -> None:
        readings = [*trials, *ran(context.warm_start)]
        measured = [t.measurement for t in readings]
        self.law = Law(readings[0], context)
        charged = [
            math.inf if m.epoch_gap_seconds is None else float(m.epoch_samples or math.inf)
            for m in measured
        ]
        self._epoch_samples = max(
            (samples for samples in charged if math.isfinite(samples)), default=math.inf
        )
        self.at = ConfigArrays([t.config for t in readings], context.cores, np.array(charged))
        self.earlier = np.arange(len(readings)) >= len(trials)
        # a rate that a trial did not read itself is another trial's reading, or the rate of `fit` once more
        step = [m.compute_samples_per_second if m.compute_is_read else None for m in measured]
        inputs = [m.input_samples_per_second if m.input_is_read else None for m in measured]
        fit = [m.samples_per_second for m in measured]
        values = np.log([[rate or math.nan for rate in rates] for rates in (step, inputs, fit)])
        self.is_read = np.isfinite(values)
        self.values, (kind, self.trial) = values[self.is_read], np.nonzero(self.is_read)
        self.is_input, self.is_fit = kind == 1, kind == 2
        spreads = [(m.compute_spread, m.input_spread, m.spread) for m in measured]
        variances = np.square([[noise_of(spread) for spread in row] for row in spreads]).T
        of_law = np.square(_LAW_NOISE) + (np.square(_ALONE_NOISE) if context.on_cpu else 0.0)
        self.own_noise, self.run_noise = (
            np.diag((variances + of_law[:, None])[self.is_read]),
            _RUN_NOISE[context.on_cpu],
        )
        # a first fit shows which trials the step alone bounds: the residual of fit is small there
        first = _Fit(self)
        # all errors at once: where the residuals may not grow, a decline at large batches reads as
        # noise
        fits = (
            _Fit(self, *errors, first)
            for errors in itertools.product(_SCALES, _RUN_FACTORS, _INPUT_ERRORS)
        )
        self._best = max(fits, key=lambda fit: fit.evidence)

    def predict(self, configs: ConfigArrays) -> Prediction:
        """Predict the log rates of `fit`, over epochs if gaps between them were read."""
        configs = copy.copy(configs)
        configs.epoch_samples = self._epoch_samples
        best, variances, now = (
            self._best,
            np.square(self.law.deviation),
            np.zeros(len(configs), bool),
        )
        step_off = (
            best.scale
            * _step_covariance(configs.octaves, best.rows.octaves)
            @ (best.rows.by_step * best.weights)
        )
        rates, slopes, by_step = self.law.slopes(best.parameters, configs, now, step_off)
        height = best.scale * _FIT_AMPLITUDE * _share_below_ceiling(rates)
        rows = _Rows(
            slopes[2],
            best.scale * by_step[2],
            height,
            configs.octaves,
            configs.coordinates / configs.lengths,
        )
        residual = np.outer(height, best.rows.height) * _correlation(rows.points, best.rows.points)
        explained = np.linalg.solve(best.root, rows.covariance(best.rows, variances).T)
        variance = (
            np.square(rows.slopes) @ variances + np.square(height) - np.square(explained).sum(0)
        )
        variance += np.square(rows.by_step) * np.square(_STEP_AMPLITUDES).sum()
        deviation, noise = (
            np.sqrt(np.maximum(variance, 0.0)),
            math.sqrt(np.median(np.diag(best.noise)[self.is_fit])),
        )
        return Prediction(
            rates[2] + residual @ best.weights, deviation, noise, rows, explained, variances
        )


def ran(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that have a rate."""
    return [t for t in trials if t.measurement.samples_per_second]


def _softmin(a: Matrix | Vector, b: Matrix, sharpness: Matrix | float) -> Matrix:
    return np.asarray(-np.logaddexp(-sharpness * a, -sharpness * b) / sharpness)


def _share_below_ceiling(rates: Matrix) -> Vector:
    """Return the share of its amplitude that the residual of fit has: little where the step, with its own, is the bound."""
    step, _, fit = rates
    return np.asarray(
        np.minimum(1.0, (np.maximum(step - fit, 0.0) + _ABOVE_CEILING) / _FIT_AMPLITUDE)
    )


def _correlation(points: Matrix, others: Matrix) -> Matrix:
    squares = np.square(points).sum(1)[:, None] + np.square(others).sum(1) - 2 * points @ others.T
    return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))


def _step_covariance(octaves: Vector, others: Vector) -> Matrix:
    apart = np.square(octaves[:, None] - others)
    parts = zip(_STEP_AMPLITUDES, _STEP_LENGTHS_OCTAVES, strict=True)
    return np.asarray(sum(height**2 * np.exp(-0.5 * apart / length**2) for height, length in parts))
