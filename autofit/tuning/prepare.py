"""Prepare a search: the description, the space, the baseline and the trials of a similar tune."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autofit.errors import NothingFitsError
from autofit.records.events import Notice
from autofit.records.states import Outcome
from autofit.records.trial import Description, FitConfig, Trial
from autofit.records.units import counted
from autofit.search.decision import Proposer
from autofit.search.sampler import FrontierSampler
from autofit.search.space import SearchSpace, build_space
from autofit.search.surrogate.memory import least_device_bytes
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.tuning.failure import nothing_fits_error, out_of_time_error
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described

_ESTIMATED_BATCHES = (1, 4, 16, 64)  # times the baseline's batch: memory is estimated there, and along lines between


@dataclass(frozen=True)
class Prepared:
    """The start of a search; `warm_start` are trials of a similar tune."""

    description: Description
    space: SearchSpace
    baseline: FitConfig
    warm_start: tuple[Trial, ...] = ()


MakeProposer = Callable[[TuneRequest, Prepared], Proposer]
"""Makes the proposer of a tune."""


def describe(runner: TrialRunner) -> Description:
    """Build the model and the data once; with a batch of 1 if the baseline's does not fit.

    Raises:
        UserCodeError: the user's code raised.
        NothingFitsError: not even a batch of 1 fits.
        NoTrialFinishedError: the model and the data could not be built.
    """
    baseline = runner.request.baseline
    sizes = (*((baseline.batch_size or 1) * factor for factor in _ESTIMATED_BATCHES), 1)
    described = runner.describe(baseline, batch_sizes=sizes)
    if isinstance(described, Description):
        return described
    if described.outcome is Outcome.TIMEOUT and not runner.budget.seconds_left():
        raise out_of_time_error(runner, "the model and the data were built")
    if not described.outcome.is_oom:
        raise not_described(described)
    smallest = replace(baseline, batch_size=1, workers=1, use_multiprocessing=False)
    described = runner.describe(smallest, note=", batch 1")
    if isinstance(described, Description):
        return described
    raise nothing_fits_error(runner, Trial(smallest, described))


def prepare(request: TuneRequest, description: Description) -> Prepared:
    """The search space and the baseline for a described workload.

    Raises:
        UsageError: the space or the baseline does not suit the data.
        NothingFitsError: not even the smallest batch can fit, by the estimate.
    """
    space = _space(request, description)
    _require_room_for_smallest(request, description, space)
    return Prepared(description, space, request.baseline_in(space))


def warm_start(request: TuneRequest, study: TuningStudy, description: Description) -> tuple[Trial, ...]:
    """The trials of a similar tune in the same storage; stores the key that similar tunes share."""
    key = f"{request.warm_start_key()} {description.parameter_count} {description.sample_bytes}"
    study.set_attribute(attributes.WARM_START_KEY, key)
    return () if request.fresh else study.similar_trials(key)


def frontier_proposer(request: TuneRequest, prepared: Prepared) -> Proposer:
    """Make the default proposer."""
    settings = request.settings
    return FrontierSampler(
        prepared.space,
        baseline=prepared.baseline,
        description=prepared.description,
        limits=request.limits,
        cores=request.machine.cores,
        on_cpu=request.device is None,
        tolerance=settings.tolerance,
        risk=settings.risk,
        max_oom=settings.max_oom,
        warm_start=prepared.warm_start,
    )


def notices(prepared: Prepared, stale: int) -> Iterator[Notice]:
    """What the user should know before the first trial; `stale` stored trials do not count."""
    if prepared.warm_start:
        trials = counted(len(prepared.warm_start), "trial")
        yield Notice(f"starts from {trials} of similar tunes (other limits or versions); the choice is confirmed anew")
    if stale:
        yield Notice(f"not reused: {counted(stale, 'trial')} of an earlier run, with less memory or time than there is now")
    for text in prepared.description.notices:
        yield Notice(text)


def _space(request: TuneRequest, description: Description) -> SearchSpace:
    """The search space; without worker processes if they would hang."""
    settings, count = request.settings, description.sample_count
    space = build_space(
        settings.space.values(),
        description.knobs,
        cores=request.machine.cores,
        sample_count=settings.sample_count if count is None else count,
        baseline=settings.baseline.values(),
        effective_batch_size=settings.effective_batch_size,
        max_batch_size=settings.max_batch_size,
    )
    hangs = description.processes_hang and space.use_multiprocessing is not None
    return replace(space, use_multiprocessing=(False,)) if hangs else space


def _require_room_for_smallest(request: TuneRequest, description: Description, space: SearchSpace) -> None:
    """Raise before anything runs if the smallest batch certainly does not fit."""
    limit_bytes = request.limits.device_bytes
    smallest = space.batch_size[0] if space.batch_size else None
    needed_bytes = least_device_bytes(description, smallest or 1)
    if limit_bytes is not None and needed_bytes > limit_bytes:
        raise NothingFitsError("device", smallest, needed_bytes, limit_bytes, at_least=True, estimated=True)
