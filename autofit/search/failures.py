"""Find the configs that a failed trial rules out: they would fail as well. This module has no side effects.

Each function but `eligible` returns a mask of `configs` and takes the config that failed as arrays of length one. Both are
converted with the same number of cores, so that AUTOTUNE stands for the same number of threads on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.search.context import ConfigArrays, Mask, SearchContext

_MOST_FAILED_SIZES = 3  # batch sizes that fail before all but the one that ran are left out
_SLOW_SHARE = 0.5  # batch sizes above this share of one that timed out are not tried


def ruled_out(
    configs: ConfigArrays,
    trials: Sequence[Trial],
    context: SearchContext,
    present: Sequence[FitConfig] = (),
) -> Mask:
    """Return which configs an OOM, a hang, a timeout or an error among the trials rules out.

    `present` are configs that the user's code is known to run with.
    """
    out, cores = np.zeros(len(configs), bool), context.cores
    stacks_steps = context.description.stacks_steps
    finished = [trial.config for trial in trials if trial.measurement.outcome is Outcome.OK]
    ran, runs = ConfigArrays(finished, cores), ConfigArrays([*present, *finished], cores)
    errors = ConfigArrays(
        [trial.config for trial in trials if trial.measurement.outcome is Outcome.ERROR], cores
    )
    for trial in trials:
        failed, outcome = ConfigArrays([trial.config], cores), trial.measurement.outcome
        out |= dominated_by(configs, failed, outcome, stacks_steps=stacks_steps)
        if outcome is Outcome.ERROR:
            out |= like_an_error(configs, failed, runs, errors)
        if trial.measurement.evidence.hung:
            out |= like_a_hang(configs, failed)
        elif outcome is Outcome.TIMEOUT:
            out |= hardly_faster(configs, failed)
            # starting its processes took so long if as large a batch has finished in the main process or with threads
            out |= (
                configs.processes
                & failed.processes
                & (failed.batch <= ran.batch[~ran.processes].max(initial=0.0))
            )
    return out


def eligible(trials: Sequence[Trial], context: SearchContext) -> list[Trial]:
    """List the trials that may be chosen: all trials of their config fit, and no OOM rules the config out."""
    failed = {trial.config for trial in trials if not trial.fits(context.limits)}
    ooms = [trial for trial in trials if trial.measurement.outcome.is_oom]
    configs = ConfigArrays([trial.config for trial in trials], context.cores)
    dominated = ruled_out(configs, ooms, context)
    return [
        trial
        for trial, is_dominated in zip(trials, dominated, strict=True)
        if trial.measurement.samples_per_second and trial.config not in failed and not is_dominated
    ]


def dominated_by(
    configs: ConfigArrays, failed: ConfigArrays, outcome: Outcome, *, stacks_steps: bool = False
) -> Mask:
    """Return which configs cannot fit if one config ran out of memory; all False for any other outcome.

    Device memory grows with the batch size and, if a call `stacks_steps`, with their number. Host
    memory also grows with workers, processes and queue, so a host OOM rules out the configs that
    are at least as large in every knob. AUTOTUNE is compared only with AUTOTUNE.
    """
    larger = (configs.batch >= failed.batch) & outcome.is_oom
    if stacks_steps:
        larger &= configs.steps >= failed.steps
    if outcome is Outcome.HOST_OOM:
        same_kind = (configs.auto_workers == failed.auto_workers) & (
            configs.auto_queue == failed.auto_queue
        )
        larger &= same_kind & (configs.workers >= failed.workers)
        larger &= (configs.processes >= failed.processes) & (configs.queue >= failed.queue)
    return np.asarray(larger)


def like_a_hang(configs: ConfigArrays, hung: ConfigArrays) -> Mask:
    """Return which configs may hang as one did: with as many workers of its kind, or without a queue, as large a batch."""
    same_kind = (configs.processes == hung.processes) & (configs.queued == hung.queued)
    return np.asarray(
        same_kind
        & np.where(hung.queued, configs.workers >= hung.workers, configs.batch >= hung.batch)
    )


# Code may fail with other workers (a file handle that threads share), with several steps in a call (batches of different
# sizes) or with other batch sizes (triplets). A config that differs in several of these from all that ran accuses none of
# them: only what has all of them is ruled out, until a trial with one of them has run. What has one of them and another
# difference waits for that trial, so that one cause fails twice at most.
def like_an_error(
    configs: ConfigArrays, failed: ConfigArrays, ran: ConfigArrays, errors: ConfigArrays
) -> Mask:
    """Return which configs the user's code may fail with as it did with one of the `errors`, given those that it ran with.

    Of batch sizes, those are ruled out that lack a divisor which all sizes that ran have and the failed one has not.
    If there is none, what is as large or as small is; and if several sizes have failed that nothing else explains, all but
    the only one that ran.
    """
    out, waits, is_new = np.ones(len(configs), bool), np.zeros(len(configs), bool), False
    differences = sum(
        ~np.isin(of(configs), of(ran)) for of in (_kinds, _several_steps, attrgetter("batch"))
    )
    has_run = np.ones(len(errors), bool)  # with the workers and the steps of each error
    for of in (_kinds, _several_steps):
        has_run &= np.isin(of(errors), of(ran))
        if not np.isin(of(failed), of(ran))[0]:
            alike = of(configs) == of(failed)
            out, is_new = out & alike, True
            waits |= alike & (differences > 1) & (alike & (differences == 1)).any()
    if failed.batch[0] not in ran.batch:
        common, size, is_new = int(np.gcd.reduce(ran.batch.astype(int))), int(failed.batch[0]), True
        divisor = next((n for n in range(2, common + 1) if common % n == 0 and size % n), 0)
        like_it = configs.batch == size
        if not ran.batch.min() < size < ran.batch.max():
            like_it = configs.batch >= size if size > ran.batch.max() else configs.batch <= size
        out &= configs.batch % divisor != 0 if divisor else like_it
        if len({*ran.batch}) == 1 and len({*errors.batch[has_run]}) >= _MOST_FAILED_SIZES:
            out = configs.batch != ran.batch[0]
    return np.asarray(out & is_new | waits)


def _several_steps(configs: ConfigArrays) -> Mask:
    return np.asarray(configs.steps > 1)


# numbers what fetches batches: the main thread, threads, or processes
def _kinds(configs: ConfigArrays) -> Mask:
    return np.asarray(np.where(configs.processes, 2, configs.workers > 1))


def hardly_faster(configs: ConfigArrays, slow: ConfigArrays) -> Mask:
    """Return which configs have more than half the batch size of one that timed out, and at most its workers."""
    no_faster = (configs.workers <= slow.workers) & (configs.processes <= slow.processes)
    return np.asarray((configs.batch > _SLOW_SHARE * slow.batch) & no_faster)
