"""Parametric models of the rates of the step alone, the input alone, and `fit`, in samples per second.

    step     R_c  = b / (t0 + t1·b)                        affine in the batch: saturates
    input    R_in = b·(n^-s + g^-s)^(-1/s) / (p0 + p1·b)   n busy threads up to a capacity g (the GIL, the disk, the
                                                           cores), abruptly at a large s, gradually at s = 1
                  = b·min(n, G) / (p0 + (p1 + x)·b)        n busy processes up to G, x to pickle a sample ...
                    but at most 1 / r                      ... and r to receive it, one after the other
                  = a times the rate of one thread per core    with AUTOTUNE, which tf.data controls
    fit      R    = (R_c^-k + R_in^-k)^(-1/k)              k = 1: they alternate; large k: the slower one limits

Workers beyond max_queue_size + 1 are idle. A queue evens out variation: k grows with it. The minima for processes are
smooth as well, so that the fit has gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autofit.search.config_arrays import ConfigArrays, Matrix

NAMES = (
    "step_sample",
    "step_half",
    "input_sample",
    "input_half",
    "threads",
    "processes",
    "pickle",
    "receive",
    "overlap",
    "autotune",
    "sharpness",
)
"""The parameters as natural logarithms: t1, t0/t1, p1, p0/p1, g, G, x, r, k, a, s (seconds/sample, batches, workers)."""

_QUEUE_SMOOTHING_BATCHES = 10.0  # queue size that doubles k (assumed, not measured)


@dataclass(frozen=True)
class Rates:
    """Natural logarithms of the three rates, one row per set of parameters and one column per config."""

    step: Matrix
    inputs: Matrix
    fit: Matrix


def log_rates(
    parameters: Matrix,
    configs: ConfigArrays,
    step_off: Matrix | float = 0.0,
    input_off: Matrix | float = 0.0,
    *,
    takes_turns: bool = False,
) -> Rates:
    """Evaluate the three models.

    Args:
        parameters: (sets, 11) natural logarithms, in the order of `NAMES`.
        configs: the configs.
        step_off: known error of the step's model in log rate, for each config; it is added.
        input_off: the same for the input's model.
        takes_turns: whether step and input alternate without a queue.
    """
    columns = np.exp(parameters).T[:, :, None]
    t1, half, p1, p_half, threads, processes, pickle, receive, overlap, autotune, sharpness = columns
    step = step_off - np.log(t1 * (1 + half / configs.batch))
    busy = np.minimum(configs.workers, np.where(configs.queue > 0, configs.queue + 1, configs.workers))
    alone = p1 * (1 + p_half / configs.batch)
    shared = -np.logaddexp(-sharpness * np.log(busy), -sharpness * np.log(threads)) / sharpness
    shared = np.where(configs.queued, shared, 0.0) + np.where(configs.auto_workers, np.log(autotune), 0.0)
    by_processes = _least(_least(busy, processes) / (alone + pickle), 1 / receive)
    inputs = input_off + np.where(configs.processes, np.log(by_processes), shared - np.log(alone))
    k = overlap * (1 + np.minimum(configs.queue, 2 * _QUEUE_SMOOTHING_BATCHES) / _QUEUE_SMOOTHING_BATCHES)
    if takes_turns:
        k = np.where(configs.queued, k, 1.0)
    return Rates(step, inputs, -np.logaddexp(-k * step, -k * inputs) / k)


def _least(a: Matrix, b: Matrix) -> Matrix:
    """A smooth minimum of two positive numbers: (a^-8 + b^-8)^(-1/8)."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    eighth = np.square(np.square(np.square(low / high)))
    return np.asarray(low / np.sqrt(np.sqrt(np.sqrt(1 + eighth))))
