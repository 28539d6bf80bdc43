"""Predict device and host memory, each with one Bayesian line through the measured peaks."""

# device   peak = V + c·E(b) + k·(n - 1)·b·s    E: the estimate from the graph of the train step
#          peak = V + c·b + k·(n - 1)·b·s       without an estimate
# host     peak = process + c·step + d·(q + p)·b·s + e·t·b·s + w·(U + f·b·s) + k·(n - 1)·b·s
#
# with b samples of s bytes in a batch, q queued batches, p batches between queue and step (on JAX
# also those of the steps under way), t threads that each make a batch, w worker processes, and n
# steps in a call that stacks their batches (1 elsewhere); "step" is what the step takes on a CPU,
# or the conversion of arrays before the first step. Each forked worker holds f batches and U bytes,
# the pages that it writes to. AUTOTUNE counts as one thread per core, and as a queue of
# `AUTOTUNE_BATCHES`.
#
# The coefficients start from the description and are updated with each peak; all but the constants
# are at least 0, so that memory never falls with a knob. An OOM that the line does not expect
# counts as a peak at the limit. A peak that was read without waiting for a full queue is the least
# that its config takes: it counts only if the line expects less.

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autofit.backends import BACKENDS
from autofit.records.description import Description, Footprint
from autofit.records.knobs import KERAS_DEFAULTS, FitConfig
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Trial
from autofit.search.context import ConfigArrays, Matrix, SearchContext, Vector
from autofit.search.failures import with_outcome

# relative noises of a device peak on a CPU from run to run, if XLA has laid out the step's buffers,
# and if operations overlap by chance (tests/benchmarks/memory.py)
_COMPILED_NOISE = 0.02
_OVERLAPPING_NOISE = 0.06
# relative error of the line for each doubling beyond the largest batch that ran
_ERROR_PER_OCTAVE = 0.02
# relative deviation of the estimate's factor c, at least
_LEAST_ERROR = 0.05
# and that of V as well, if one size alone was estimated: it does not show what grows with the batch
# (assumed)
_ONE_SIZE_ERROR = 0.3
# relative noise of a host peak from run to run
_HOST_NOISE = 0.03
# Keras holds max_queue_size + 1 batches (measured with Keras 3.15)
_LOOK_AHEAD_BATCHES = 1
# between queue and step: in training, prefetched, copied (measured with Keras 3.15)
_PASSING_BATCHES = 3
# What a call that stacks its batches holds at once, relative to its batches: mean and standard
# deviation. A GPU holds the stacks of three calls, and the batches of the last one (assumed, from
# Keras's source). The host holds the batches, their copies, their stack and the one before
# (measured on a CPU: 4.0 and 4.1).
_STACKED_ON_DEVICE = (4.0, 2.0)
_STACKED_ON_HOST = (4.0, 1.0)
# shared pages that a forked worker copies by writing (measured), and their prior deviation
_WORKER_BYTES = 60 * 2**20
_WORKER_DEVIATION_BYTES = 100 * 2.0**20
# batches that a worker process holds: the one that it makes, and its pickled copy
_WORKER_BATCHES = 2
# relative deviation of the process; a worker's bytes deviate by this share of it, at worst
_PROCESS_DEVIATION = 0.3
# share of the first host peak that batches take, if the sample size is unknown (assumed)
_ASSUMED_BATCHES_SHARE = 0.1
# bytes of the process if it was not read (assumed)
_DEFAULT_PROCESS_BYTES = 2.0**30
# standard deviations up to an upper bound: 99.4 % of a normal distribution lie below it
_BOUND_DEVIATIONS = 2.5
# of the host limit: below it, no peak need be read (assumed)
_AMPLE_SHARE = 0.5


class _GpuDeviations(NamedTuple):
    """Standard deviations of device peaks on a GPU.

    `noise` is relative, around the line. `jump` is relative, too, beyond the largest batch that
    ran, where cuDNN may take another algorithm. `constant_bytes` is what an estimate lacks, such as
    workspaces, in bytes.
    """

    noise: float
    jump: float
    constant_bytes: float


# measured by others: 1,017 models with torch on an A100
_GPU = _GpuDeviations(0.03, 0.04, 2.0**30)
# assumed for a step that XLA compiled, which lays out all buffers: with the deviations of torch,
# bounds were 1.16 and 1.21 times the peaks of JAX on an H200 (tests/benchmarks/h200.txt); with
# these, 1.11 times the totals of seven models compiled for an H100, and none of 140 was broken
_COMPILED_ON_GPU = _GpuDeviations(0.015, 0.02, 2.0**28)


class Line:
    """Bayesian linear regression with relative noise.

    Bishop, Pattern Recognition and Machine Learning, 3.3. Each coefficient has a Gaussian prior: a
    row of `prior`, with a mean and a deviation; the first feature is the constant. A config of
    `more` that is expected to be below its `least` bytes is added as a value just above them.
    """

    # relative deviations from run to run, and beyond the largest batch that ran
    _noise = _HOST_NOISE
    _jump = 0.0

    def __init__(
        self,
        prior: Matrix,
        ran: ConfigArrays,
        peaks: Vector,
        more: ConfigArrays,
        least: Vector,
    ) -> None:
        self._ran = ran
        self._peaks = peaks
        rows = self._rows(ran)
        self._mean, self._covariance = self._fit(prior, rows, peaks)
        rows_more = self._rows(more)
        below = rows_more @ self._mean < least
        if below.any():
            rows = np.vstack([rows, rows_more[below]])
            values = np.append(peaks, least[below] * (1 + self._noise))
            self._mean, self._covariance = self._fit(prior, rows, values)

    def predict(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        """Predict the expected bytes of configs, and the standard deviations of a reading."""
        rows = self._rows(configs)
        mean = np.maximum(rows @ self._mean, 0.0)
        variance = np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        deviation = np.sqrt(variance + np.square(self._noise * mean))
        largest = max(self._ran.batch, default=math.inf)
        octaves = np.log2(np.maximum(1.0, configs.batch / largest))
        beyond = np.hypot(_ERROR_PER_OCTAVE * octaves, self._jump * (octaves > 0))
        return mean, np.hypot(deviation, mean * beyond)

    def _fit(
        self, prior: Matrix, rows: Matrix, values: Vector
    ) -> tuple[Vector, Matrix]:
        """Return the mean of the coefficients and their covariance."""
        precision = np.diag(1 / np.square(prior[:, 1]))
        weights = 1 / np.square(self._noise * np.maximum(values, 1.0))
        covariance = np.linalg.inv(precision + rows.T @ (weights[:, None] * rows))
        mean = covariance @ (precision @ prior[:, 0] + rows.T @ (weights * values))
        return np.append(mean[:1], np.maximum(mean[1:], 0.0)), covariance

    def _rows(self, configs: ConfigArrays) -> Matrix:
        """Return the features of configs, of shape (configs, coefficients)."""
        raise NotImplementedError


class DeviceLine(Line):
    """The line of device memory; `is_known` is False if there is neither an estimate nor a peak."""

    def __init__(self, context: SearchContext, trials: Sequence[Trial]) -> None:
        self._description = context.description
        self._footprints = self._description.footprints
        plans_memory = BACKENDS[self._description.backend].plans_memory
        is_compiled = self._description.jit_compile and plans_memory
        gpu = _COMPILED_ON_GPU if is_compiled else _GPU
        self._noise = gpu.noise
        self._jump = gpu.jump
        if context.on_cpu:
            self._noise = _COMPILED_NOISE if is_compiled else _OVERLAPPING_NOISE
            self._jump = 0.0
        finished = finished_trials(trials, context)
        done = [t for t in finished if t.measurement.device_peak_bytes is not None]
        peaks = np.array([t.measurement.device_peak_bytes for t in done], float)
        ran = context.arrays(done)
        failed = with_outcome(trials, Outcome.DEVICE_OOM)
        self.is_known = bool(done or self._footprints)
        self._has_run = bool(done or failed)
        if self._footprints:
            prior = self._estimated_prior(0.0 if context.on_cpu else gpu.constant_bytes)
        else:
            # an allocator may count 0 bytes for small tensors
            a_sample = peaks / ran.batch
            prior = [(0.0, peaks.max(initial=1.0)), (0.0, a_sample.max(initial=1.0))]
        if self._description.stacks_steps:
            prior.append(_STACKED_ON_DEVICE)
        limits = np.full(len(failed), float(context.limits.device_bytes or 0))
        super().__init__(np.array(prior), ran, peaks, context.arrays(failed), limits)

    def _estimated_prior(self, constant_bytes: float) -> list[tuple[float, float]]:
        """Return the priors of what the estimate lacks, and of its factor."""
        first = self._footprints[0]
        constant = max(1.0, first.error_bytes(first.device_bytes) / 2, constant_bytes)
        if len(self._footprints) > 1:
            return [(0.0, constant), (1.0, max(_LEAST_ERROR, first.relative_error / 2))]
        constant = max(constant, _ONE_SIZE_ERROR * first.device_bytes)
        return [(0.0, constant), (1.0, max(_ONE_SIZE_ERROR, first.relative_error / 2))]

    def predict(self, configs: ConfigArrays) -> tuple[Vector, Vector]:
        if not self.is_known:
            return np.zeros(len(configs)), np.zeros(len(configs))
        estimated = self._rows(configs)[:, 1]
        if not self._has_run:
            # 95% of estimates are within their error
            errors = [self._footprints[0].error_bytes(one) / 2 for one in estimated]
            return estimated, np.array(errors)
        mean, deviation = super().predict(configs)
        if self._footprints:
            if len(set(self._ran.batch)) == 1:
                # one size does not show whether the estimate is too low by a constant or a factor
                at_size = estimates(self._footprints, self._ran.batch[:1])
                scaled = estimated * self._peaks[0] / at_size
                deviation = np.maximum(deviation, scaled - mean)
            return mean, deviation
        # memory is at most proportional to the batch size, and to the steps of a call that stacks
        # them
        growth = np.maximum(1.0, configs.batch / self._ran.batch[:, None])
        if self._description.stacks_steps:
            growth *= np.maximum(1.0, configs.steps / self._ran.steps[:, None])
        most = (self._peaks[:, None] * growth).min(axis=0)
        expected = np.minimum(mean, most)
        upper = most * (1 + math.hypot(self._noise, self._jump))
        return expected, np.minimum(mean + deviation, upper) - expected

    def _rows(self, configs: ConfigArrays) -> Matrix:
        estimated = configs.batch
        if self._footprints:
            estimated = estimates(self._footprints, configs.batch)
        stacked = _stacked(self._description, configs)
        return np.stack([np.ones(len(configs)), estimated, *stacked], axis=1)


class HostLine(Line):
    """The line of host memory.

    `is_known` is False if neither the description nor a peak shows how large the process is.
    """

    def __init__(self, context: SearchContext, trials: Sequence[Trial]) -> None:
        description = context.description
        self._description = description
        self._on_cpu = context.on_cpu
        finished = finished_trials(trials, context)
        done = [t for t in finished if t.measurement.host_peak_bytes]
        peaks = np.array([t.measurement.host_peak_bytes for t in done], float)
        self.is_known = bool(description.process_bytes or done)
        process = min(peaks, default=_DEFAULT_PROCESS_BYTES)
        if description.process_bytes:
            process = description.process_bytes + description.mapped_bytes
            process = float(process + description.tensor_bytes)
        first = (done[0].config if done else KERAS_DEFAULTS).batch_size or 1
        assumed = _ASSUMED_BATCHES_SHARE * process / (_PASSING_BATCHES * first)
        self._sample_bytes = description.sample_bytes or assumed
        deviation = _PROCESS_DEVIATION * process
        prior = [
            (process, deviation),
            # the step, relative to its estimate
            (1.0, 0.5),
            # a held batch, relative to the bytes of its samples
            (1.0, 0.4),
            # batches per thread, which holds the batch that it makes and the raw data for it
            (1.0, 0.6),
            (_WORKER_BYTES, max(_WORKER_DEVIATION_BYTES, deviation)),
            (_WORKER_BATCHES, 2.0),
        ]
        if description.stacks_steps:
            prior.append(_STACKED_ON_HOST)
        is_read = np.array([_read_host_memory(trial) for trial in done], bool)
        read = itertools.compress(done, is_read)
        at_least = itertools.compress(done, ~is_read)
        failed = with_outcome(trials, Outcome.HOST_OOM)
        limits = [float(context.limits.host_bytes)] * len(failed)
        super().__init__(
            np.array(prior),
            context.arrays(read),
            peaks[is_read],
            context.arrays([*at_least, *failed]),
            np.append(peaks[~is_read], limits),
        )

    def _rows(self, configs: ConfigArrays) -> Matrix:
        description = self._description
        batch_bytes = configs.batch * self._sample_bytes
        step = np.zeros(len(configs))
        if self._on_cpu and description.footprints:
            first = description.footprints[0]
            step = estimates(description.footprints, configs.batch)
            step = step - (first.device_bytes - first.step_bytes)
        elif self._on_cpu:
            # weights, gradients and four batches of samples
            step = 2 * description.parameter_bytes + 4 * batch_bytes
        columns = [
            np.ones(len(configs)),
            # arrays are converted before the first step
            np.maximum(step, description.conversion_bytes),
            (_held_batches(configs) + description.steps_ahead) * batch_bytes,
            configs.worker_threads * batch_bytes,
            configs.worker_processes,
            configs.worker_processes * batch_bytes,
        ]
        return np.stack([*columns, *_stacked(description, configs)], axis=1)


class Memory:
    """Predicts device and host memory from the context and the trials of this and similar tunes."""

    def __init__(self, context: SearchContext, trials: Sequence[Trial] = ()) -> None:
        self._context = context
        self._device = DeviceLine(context, trials)
        self._host = HostLine(context, trials)

    def upper_bytes(self, configs: ConfigArrays) -> Matrix:
        """Return upper bounds of device and host memory, of shape (2, configs).

        They hold with a probability of 99 %. They are 0 if nothing is known.
        """
        means, deviations = self._predict(configs).swapaxes(0, 1)
        return means + _BOUND_DEVIATIONS * deviations

    def is_ample(self, config: FitConfig) -> bool:
        """Return whether host memory cannot matter: it is far below the limit with a full queue."""
        most = self.upper_bytes(ConfigArrays([config], self._context.cores))[1, 0]
        least = _AMPLE_SHARE * self._context.limits.host_bytes
        return bool(self._host.is_known and most < least)

    def shares(self, configs: ConfigArrays) -> Matrix:
        """Return the expected shares of both limits, and their deviations: (2, 2, configs).

        They are 0 without a limit, or if nothing is known.
        """
        limits = self._context.limits
        host_limit = limits.host_bytes if self._host.is_known else math.inf
        both = np.array([limits.device_bytes or math.inf, host_limit])
        return self._predict(configs) / both[:, None, None]

    def _predict(self, configs: ConfigArrays) -> Matrix:
        """Predict means and deviations in bytes, of shape (2, 2, configs)."""
        return np.array([self._device.predict(configs), self._host.predict(configs)])


def finished_trials(trials: Sequence[Trial], context: SearchContext) -> list[Trial]:
    """Return the trials that finished, in this tune or in an earlier one of the same workload."""
    return with_outcome([*trials, *context.warm_start], Outcome.OK)


def _read_host_memory(trial: Trial) -> bool:
    """Return whether a trial's queue, if it had one, was full while its host memory was read."""
    by_phase = trial.measurement.host_peak_bytes_by_phase
    return not trial.config.has_queue or not by_phase or Phase.QUEUE_FULL in by_phase


def estimates(footprints: Sequence[Footprint], batch: Vector) -> Vector:
    """Estimate device memory for each batch size, in bytes: a line through the footprints.

    It never falls. Of a single footprint, all but the variables and the data is taken to grow with
    the batch.
    """
    sizes = np.array([footprint.batch_size for footprint in footprints])
    values = np.maximum.accumulate(
        [float(footprint.device_bytes) for footprint in footprints]
    )
    if len(sizes) == 1:
        fixed = footprints[0].fixed_bytes
        return fixed + (values[0] - fixed) * batch / sizes[0]
    index = np.searchsorted(sizes[1:-1], batch)
    slopes = np.diff(values) / np.diff(sizes)
    line = values[index] + slopes[index] * (batch - sizes[index])
    return np.maximum(values[0] * np.minimum(1.0, batch / sizes[0]), line)


def least_device_bytes(description: Description, batch_size: int) -> int:
    """Return a lower bound in bytes: the estimate minus twice its error.

    It is at least the size of the variables.
    """
    variables = description.parameter_bytes + description.optimizer_bytes
    if not description.footprints:
        return variables
    estimated = float(estimates(description.footprints, np.array([batch_size]))[0])
    return max(
        variables,
        round(estimated - 2 * description.footprints[0].error_bytes(estimated)),
    )


def host_bytes_by_part(
    description: Description, config: FitConfig, step_bytes: int, cores: int = 1
) -> dict[str, int]:
    """Estimate each part of a config's host memory, in bytes.

    `step_bytes` is the peak of the train step on a CPU, without the data's tensors; 0 on an
    accelerator.
    """
    configs = ConfigArrays([config], cores)
    batch_bytes = (config.batch_size or 1) * description.sample_bytes
    held = _held_batches(configs) + configs.worker_threads + description.steps_ahead
    queue = int(held[0]) * batch_bytes
    worker = _WORKER_BYTES + _WORKER_BATCHES * batch_bytes
    return {
        "process": description.process_bytes,
        "arrays": description.mapped_bytes,
        "tensors": description.tensor_bytes,
        "conversion": max(0, description.conversion_bytes - step_bytes - queue),
        "step": step_bytes,
        "queue": queue,
        "worker_processes": int(configs.worker_processes[0]) * worker,
    }


def _stacked(description: Description, configs: ConfigArrays) -> list[Vector]:
    """Return the bytes of the samples that a call stacks beyond one step, as a column, or none."""
    if not description.stacks_steps:
        return []
    return [(configs.steps - 1) * configs.batch * description.sample_bytes]


def _held_batches(configs: ConfigArrays) -> Vector:
    """Return how many finished batches the training process holds, in the queue and beyond it."""
    return (
        np.where(configs.queued, configs.queue + _LOOK_AHEAD_BATCHES, 0.0)
        + _PASSING_BATCHES
    )
