"""The expected seconds of a run: a trial, compiling its step, and running out of memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from autofit.backends.protocol import JAX
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search.context import ConfigArrays, SearchContext, Vector
from autofit.search.rates import ran

# that an OOM costs beyond a trial on a CPU: TensorFlow repeats a failing allocation for 10 s, and
# an OOM alarms
_OOM_SECONDS = 60.0
# of a trial on a GPU until it is out of memory (on an H200: 0.3 to 1.1, and 13 to 27); on
# TensorFlow, what the allocator repeats adds to those of other trials (on 20 curves of real GPUs,
# 0.25 OOMs a search on torch and 0.05 on TensorFlow, with the same regret as at 60 s)
_SECONDS_TO_OOM = {"torch": 1.0, JAX: 20.0}
_REPEATING_SECONDS = 10.0
_LEAST_COMPILING_SECONDS = 1.0  # less hardly matters to what is tried


def relative_seconds(
    configs: ConfigArrays, risk: Vector, trials: Sequence[Trial], context: SearchContext
) -> Vector:
    """Return the expected seconds of a run of each config, relative to those of the mean trial.

    `risk` is the probability that it runs out of memory. One of the trials has a rate.
    """
    rated = ran(trials)
    mean = statistics.fmean(trial.measurement.seconds for trial in rated) or _OOM_SECONDS
    relative: Vector = 1 + risk * _oom_seconds(mean, trials, context) / mean
    if not context.description.compiler:
        return relative
    programs = _programs(ConfigArrays([trial.config for trial in rated], context.cores), context)
    compiling = _compiling_seconds(rated, programs)
    if compiling < _LEAST_COMPILING_SECONDS:
        return relative
    compiled = set(programs)
    is_new = np.array([program not in compiled for program in _programs(configs, context)])
    return relative + (is_new - len(compiled) / len(programs)) * compiling / mean


def _oom_seconds(mean: float, trials: Sequence[Trial], context: SearchContext) -> float:
    """Return the seconds that an OOM costs beyond a mean trial, as one of which it counts."""
    if context.on_cpu:
        return _OOM_SECONDS
    read = [
        trial.measurement.seconds
        for trial in trials
        if trial.measurement.outcome is Outcome.DEVICE_OOM
    ]
    usual = _SECONDS_TO_OOM.get(context.description.backend, mean + _REPEATING_SECONDS)
    return max(0.0, (statistics.fmean(read) if read else usual) - mean)


def _compiling_seconds(rated: Sequence[Trial], programs: Sequence[object]) -> float:
    """Return by how much a first step of a program takes longer in its first trial."""
    first = list[float]()
    others = list[float]()
    for number, (trial, program) in enumerate(zip(rated, programs, strict=True)):
        phases = trial.measurement.phase_seconds.items()
        seconds = sum(seconds for phase, seconds in phases if phase.is_first)
        (others if program in programs[:number] else first).append(seconds)
    usual = statistics.fmean(others) if others else 0.0
    return statistics.fmean(first) - usual


def _programs(configs: ConfigArrays, context: SearchContext) -> list[tuple[float, float]]:
    """Return what tells apart the steps that are compiled for configs."""
    # on JAX, a call of several steps calls one program for each, unless it stacks their batches
    is_of_step = context.description.backend == JAX and not context.description.stacks_steps
    steps = np.ones(len(configs)) if is_of_step else configs.steps
    return list(zip(configs.batch.tolist(), steps.tolist(), strict=True))
