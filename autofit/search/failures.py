"""Find the configs that a failed trial rules out: they would fail as well.

This module has no side effects. Each function but `eligible` returns a mask of `configs` and takes
the config that failed as arrays of length one. Both are converted with the same number of cores, so
that AUTOTUNE stands for the same number of threads on either side.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.search.context import ConfigArrays, Indices, Mask, SearchContext

# batch sizes that fail before all but the one that ran are left out
_MOST_FAILED_SIZES = 3
# batch sizes above this share of one that timed out are not tried
_SLOW_SHARE = 0.5


def ruled_out(
    configs: ConfigArrays,
    trials: Sequence[Trial],
    context: SearchContext,
    present: Sequence[FitConfig] = (),
) -> Mask:
    """Return which configs an OOM, a hang, a timeout or an error among the trials rules out.

    `present` are configs that the user's code is known to run with.
    """
    finished = with_outcome(trials, Outcome.OK)
    ran = context.arrays(finished)
    known = ConfigArrays(
        [*present, *(trial.config for trial in finished)], context.cores
    )
    errors = context.arrays(with_outcome(trials, Outcome.ERROR))
    out = np.zeros(len(configs), bool)
    for trial in trials:
        outcome = trial.measurement.outcome
        failed = context.arrays([trial])
        if outcome.is_oom:
            stacks_steps = context.description.stacks_steps
            out |= dominated_by(configs, failed, outcome, stacks_steps=stacks_steps)
        elif outcome is Outcome.ERROR:
            out |= like_an_error(configs, failed, known, errors)
        elif trial.measurement.evidence.hung:
            out |= like_a_hang(configs, failed)
        elif outcome is Outcome.TIMEOUT:
            out |= hardly_faster(configs, failed)
            # starting its processes took so long if as large a batch has finished without any
            largest = ran.batch[~ran.processes].max(initial=0.0)
            out |= configs.processes & failed.processes & (failed.batch <= largest)
    return out


def with_outcome(trials: Sequence[Trial], outcome: Outcome) -> list[Trial]:
    """List the trials that ended so."""
    return [trial for trial in trials if trial.measurement.outcome is outcome]


def eligible(trials: Sequence[Trial], context: SearchContext) -> list[Trial]:
    """List the trials that may be chosen.

    All trials of their config fit, and no OOM rules the config out.
    """
    unfit = {trial.config for trial in trials if not trial.fits(context.limits)}
    ooms = [trial for trial in trials if trial.measurement.outcome.is_oom]
    is_left = ~ruled_out(context.arrays(trials), ooms, context)
    left = itertools.compress(trials, is_left)
    return [
        trial
        for trial in left
        if trial.samples_per_second and trial.config not in unfit
    ]


def dominated_by(
    configs: ConfigArrays,
    failed: ConfigArrays,
    outcome: Outcome,
    *,
    stacks_steps: bool = False,
) -> Mask:
    """Return which configs cannot fit if one config ran out of memory.

    Device memory grows with the batch size and, if a call `stacks_steps`, with their number. Host
    memory also grows with workers, processes and queue, so a host OOM rules out the configs that
    are at least as large in every knob. AUTOTUNE is compared only with AUTOTUNE.
    """
    larger = (configs.batch >= failed.batch) & outcome.is_oom
    if stacks_steps:
        larger &= configs.steps >= failed.steps
    if outcome is Outcome.HOST_OOM:
        larger &= configs.auto_workers == failed.auto_workers
        larger &= configs.auto_queue == failed.auto_queue
        larger &= configs.workers >= failed.workers
        larger &= configs.processes >= failed.processes
        larger &= configs.queue >= failed.queue
    return larger


def like_a_hang(configs: ConfigArrays, hung: ConfigArrays) -> Mask:
    """Return which configs may hang as one did.

    They have as many workers of its kind or, without a queue, as large a batch.
    """
    same_kind = (configs.processes == hung.processes) & (configs.queued == hung.queued)
    larger = configs.batch >= hung.batch
    return same_kind & np.where(hung.queued, configs.workers >= hung.workers, larger)


def like_an_error(
    configs: ConfigArrays, failed: ConfigArrays, ran: ConfigArrays, errors: ConfigArrays
) -> Mask:
    """Return which configs may fail with an error as one of the `errors` did.

    The user's code is known to run with those that `ran`. It may fail with other workers (a file
    handle that threads share), with several steps in a call (batches of different sizes) or with
    other batch sizes (triplets).
    """
    # A config that differs in several of these from all that ran accuses none of them: only what
    # has all of them is ruled out, until a trial with one of them has run. What has one of them and
    # another difference waits for that trial, so that one cause fails twice at most.
    ways = (_kinds, _several_steps)
    features = (*ways, attrgetter("batch"))
    differences = sum(~np.isin(of(configs), of(ran)) for of in features)
    causes = [of for of in ways if not np.isin(of(failed), of(ran))]
    is_new_size = failed.batch[0] not in ran.batch
    out = np.full(len(configs), bool(causes) or is_new_size)
    waits = np.zeros(len(configs), bool)
    for of in causes:
        alike = of(configs) == of(failed)
        out &= alike
        if (alike & (differences == 1)).any():
            waits |= alike & (differences > 1)
    if is_new_size:
        # of the errors that neither workers nor steps explain
        are_known = np.ones(len(errors), bool)
        for of in ways:
            are_known &= np.isin(of(errors), of(ran))
        failed_sizes = set(errors.batch[are_known])
        if len(set(ran.batch)) == 1 and len(failed_sizes) >= _MOST_FAILED_SIZES:
            # several sizes have failed that nothing else explains
            return (configs.batch != ran.batch[0]) | waits
        out &= _sizes_like(configs, int(failed.batch[0]), ran)
    return out | waits


def _sizes_like(configs: ConfigArrays, size: int, ran: ConfigArrays) -> Mask:
    """Return which configs have a batch size that may fail as one did.

    Each lacks a divisor that all sizes that ran have, and the failed one has not. Without such a
    divisor, it is as large or as small.
    """
    common = int(np.gcd.reduce(ran.batch.astype(int)))
    for divisor in range(2, common + 1):
        if common % divisor == 0 and size % divisor:
            return configs.batch % divisor != 0
    if size > ran.batch.max():
        return configs.batch >= size
    if size < ran.batch.min():
        return configs.batch <= size
    return configs.batch == size


def _kinds(configs: ConfigArrays) -> Indices:
    """Number what fetches batches: the main thread, threads, or processes."""
    return np.where(configs.processes, 2, configs.workers > 1)


def _several_steps(configs: ConfigArrays) -> Mask:
    return configs.steps > 1


def hardly_faster(configs: ConfigArrays, slow: ConfigArrays) -> Mask:
    """Return which configs are not faster than one that timed out.

    They have more than half its batch size, and at most its workers.
    """
    larger = configs.batch > _SLOW_SHARE * slow.batch
    return (
        larger
        & (configs.workers <= slow.workers)
        & (configs.processes <= slow.processes)
    )
