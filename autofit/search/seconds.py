"""The expected seconds of a run: a trial, compiling its step, and running out of memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from autofit.backends import BACKENDS
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search.context import ConfigArrays, SearchContext, Vector
from autofit.search.failures import with_outcome
from autofit.search.rates import rated_trials

# that an OOM costs beyond a trial on a CPU: TensorFlow repeats a failing allocation for 10 s, and
# an OOM alarms
_OOM_SECONDS = 60.0
# beyond a trial on a GPU, of a backend whose allocator repeats what fails, such as TensorFlow's
# (on 20 curves of real GPUs, 0.25 OOMs a search on torch and 0.05 on TensorFlow, with the same
# regret as at 60 s)
_REPEATING_SECONDS = 10.0
_LEAST_COMPILING_SECONDS = 1.0  # less hardly matters to what is tried


def relative_seconds(
    configs: ConfigArrays, risk: Vector, trials: Sequence[Trial], context: SearchContext
) -> Vector:
    """Return the expected seconds of a run of each config, relative to those of the mean trial.

    `risk` is the probability that it runs out of memory. One of the trials has a rate.
    """
    rated = rated_trials(trials)
    mean = (
        statistics.fmean(trial.measurement.seconds for trial in rated) or _OOM_SECONDS
    )
    relative = 1 + risk * _oom_seconds(mean, trials, context) / mean
    if not context.description.jit_compile:
        return relative
    programs = _programs(context.arrays(rated), context)
    compiling = _compiling_seconds(rated, programs)
    if compiling < _LEAST_COMPILING_SECONDS:
        return relative
    compiled = set(programs)
    is_new = np.array(
        [program not in compiled for program in _programs(configs, context)]
    )
    return relative + (is_new - len(compiled) / len(programs)) * compiling / mean


def _oom_seconds(mean: float, trials: Sequence[Trial], context: SearchContext) -> float:
    """Return the seconds that an OOM costs beyond a mean trial, as one of which it counts."""
    if context.on_cpu:
        return _OOM_SECONDS
    ooms = with_outcome(trials, Outcome.DEVICE_OOM)
    seconds = BACKENDS[context.description.backend].seconds_to_oom
    if ooms:
        seconds = statistics.fmean(oom.measurement.seconds for oom in ooms)
    elif seconds is None:
        seconds = mean + _REPEATING_SECONDS
    return max(0.0, seconds - mean)


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


def _programs(
    configs: ConfigArrays, context: SearchContext
) -> list[tuple[float, float]]:
    """Return what tells apart the steps that are compiled for configs."""
    # if not, a call of several steps calls one program for each
    is_of_call = (
        context.description.stacks_steps
        or BACKENDS[context.description.backend].compiles_whole_calls
    )
    steps = configs.steps if is_of_call else np.ones(len(configs))
    return list(zip(configs.batch.tolist(), steps.tolist(), strict=True))
