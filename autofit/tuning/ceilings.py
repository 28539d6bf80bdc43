"""Find what limits the rate of an answer: the step, the input, or both in each other's way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autofit.records.result import Answer, Bottleneck
from autofit.records.trial import Measurement

# a step that waits for a larger share of its time is input-bound (as in TensorFlow's profiler)
_WAITING_SHARE = 0.05
# relative: ceilings are timed for half a second to a second, so they may be too low by this much
_CEILING_NOISE = 0.05
# if the rate is below this share of the lower ceiling, step and input slow each other down
_CEILING_SHARE = 0.85


class Ceilings(NamedTuple):
    """The rates of step and input alone in samples/s, which bound that of training.

    The last is the rate of the run that read them. A rate is None if none was read, or if it is
    below that of the whole `fit`, because the machine was slower when it was measured.
    """

    bottleneck: Bottleneck = "unknown"
    compute_samples_per_second: float | None = None
    input_samples_per_second: float | None = None
    ceilings_run_samples_per_second: float | None = None


def ceilings_of(answer: Answer, measured: Sequence[Measurement]) -> Ceilings:
    """Return the ceilings that the run read whose rate is nearest to the answer's."""
    complete = [
        (math.log(each.samples_per_second / answer.samples_per_second), each)
        for each in measured
        if each.samples_per_second
        and each.compute_samples_per_second
        and each.input_samples_per_second
    ]
    if not complete:
        return Ceilings()
    _, nearest = min(complete, key=lambda pair: abs(pair[0]))
    of_epochs = nearest.samples_per_second or 0.0
    run = nearest.steady_samples_per_second or of_epochs
    # the answer's rate in steady training, as far as the run shows how much more that is
    reached = max(run, answer.samples_per_second * run / of_epochs)
    compute = _unless_lower(nearest.alone("compute"), reached)
    inputs = _unless_lower(nearest.alone("input"), reached)
    return Ceilings(_bottleneck_of(reached, compute, inputs), compute, inputs, run)


def _unless_lower(ceiling: float | None, reached: float) -> float | None:
    is_lower = not ceiling or ceiling < reached / (1 + _CEILING_NOISE)
    return None if is_lower else ceiling


def _bottleneck_of(
    reached: float, compute: float | None, inputs: float | None
) -> Bottleneck:
    """Return what limits a rate; a ceiling that is None leaves the decision to the other one."""
    if compute and reached >= (1 - _WAITING_SHARE) * compute:
        return "compute"
    if compute and inputs:
        if reached < _CEILING_SHARE * min(compute, inputs):
            return "contention"
        return "compute" if compute <= inputs else "input"
    if inputs:
        return "compute" if reached < _CEILING_SHARE * inputs else "input"
    return "input" if compute else "unknown"
