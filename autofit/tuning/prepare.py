"""Prepare a search: describe the workload, build the space and the baseline, and read the trials of similar tunes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from autofit.backends.protocol import TENSORFLOW
from autofit.errors import NothingFitsError, UsageError
from autofit.machine import host
from autofit.records.description import Description
from autofit.records.events import Notice
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.states import Outcome
from autofit.records.trial import KERAS_DEFAULTS, FitConfig, Trial
from autofit.records.units import counted
from autofit.search.frontier import FrontierSearch, LargestBatch
from autofit.search.memory import least_device_bytes
from autofit.search.sampler import BoundedSampler, FrontierSampler
from autofit.search.space import SearchSpace, build_space
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.tuning.failure import nothing_fits_error, out_of_time_error
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described
from autofit.tuning.settings import KEEP, LARGEST, TUNE
from autofit.workload import accumulation
from autofit.workload.fit_options import FIT, PREDICT, STEPS_PER_EPOCH, VALIDATION_STEPS
from autofit.workload.inputs.kinds import KINDS

_SHARED_SHARE = 0.8  # share of the free space in /dev/shm for batches that worker processes hold ready
_LIKE_A_RANGE = 4  # two listed batch sizes that differ by this factor may be meant as the ends of a range
_ESTIMATED_BATCHES = (1, 4, 16, 64)  # memory is estimated for these multiples of the baseline's batch size


@dataclass(frozen=True)
class Prepared:
    """The inputs of a search."""

    description: Description
    space: SearchSpace
    baseline: FitConfig
    own_batch: int | None  # the batch size of the baseline if it has an answer of its own
    few_updates: str | None  # a notice about batch sizes that are not tried because they leave few updates in an epoch
    warm_start: tuple[Trial, ...]  # trials of similar tunes

    @property
    def own_space(self) -> SearchSpace:
        return replace(self.space, batch_size=None if self.own_batch is None else (self.own_batch,))


def describe(runner: TrialRunner) -> Description:
    """Describe the workload with the baseline's batch size or, if that does not fit, with one sample on each device."""
    baseline, replicas = runner.request.asked_baseline, runner.request.placement.count
    usual = baseline.batch_size or KERAS_DEFAULTS.batch_size or 1
    sizes = (*(usual * factor for factor in _ESTIMATED_BATCHES), 1)
    described = runner.describe(baseline, batch_sizes=sizes)
    if isinstance(described, Description):
        return described
    if described.outcome is Outcome.TIMEOUT and not runner.budget.seconds_left():
        raise out_of_time_error(runner, "the model and the data were built")
    if not described.outcome.is_oom:
        raise not_described(described)
    smallest = replace(baseline, batch_size=replicas, workers=1, use_multiprocessing=False)
    described = runner.describe(smallest, note=f", batch {replicas}")
    if isinstance(described, Description):
        return described
    raise nothing_fits_error(runner, Trial(smallest, described))


def prepare(request: TuneRequest, description: Description, study: TuningStudy) -> Prepared:
    """Return space and baseline of a search; raise `NothingFitsError` if even the smallest batch cannot fit."""
    space, limit_bytes = _space(request, description), request.limits.device_bytes
    smallest = space.batch_size[0] if space.batch_size else None
    needed_bytes = least_device_bytes(description, smallest or 1)
    if limit_bytes is not None and needed_bytes > limit_bytes:
        raise NothingFitsError("device", smallest, needed_bytes, limit_bytes, at_least=True, estimated=True)
    whole = request.baseline(description)
    baseline = space.canonical(FitConfig.of({knob: getattr(whole, knob) for knob in space.knobs()}))
    if description.fixed_batch_size is not None:
        baseline = replace(baseline, batch_size=description.fixed_batch_size)
    if request.settings.effective_batch_size is not None and not description.accumulates_by:
        raise UsageError(
            "the train step does not use the optimizer given to compile, so autofit cannot accumulate gradients; add a "
            f"parameter {accumulation.NAME} to build_model and pass its value to the optimizers that the step uses",
            key="effective_batch_size",
        )
    few_updates = _few_updates(request, description, space)
    has_two = request.settings.batch_size == TUNE and request.changes_learning and len(space.batch_size or ()) > 1
    own_batch = baseline.batch_size if has_two else None
    return Prepared(description, space, baseline, own_batch, few_updates, warm_start(request, study, description))


def warm_start(request: TuneRequest, study: TuningStudy, description: Description) -> tuple[Trial, ...]:
    """Store the key that similar tunes share, and return the trials of similar tunes in the same storage."""
    key = f"{request.warm_start_key()} {description.parameter_count} {description.sample_bytes}"
    backend = description.versions.get("backend", TENSORFLOW)
    if backend != TENSORFLOW:  # rates on one backend say nothing about another
        key = f"{key} {backend}"
    study.set_attribute(attributes.WARM_START_KEY, key)
    steps = description.defaults.get(STEPS_PER_EXECUTION)
    trials = () if request.fresh else study.similar_trials(key)
    return tuple(  # whose configs may not name the steps
        replace(t, config=replace(t.config, steps_per_execution=t.config.steps_per_execution or steps)) for t in trials
    )


def make_sampler(request: TuneRequest, prepared: Prepared) -> FrontierSampler:
    """Make the sampler of a search; one that the user gave is kept within what is predicted to fit."""
    settings = request.settings
    own: Callable[..., FrontierSampler] = partial(
        FrontierSampler, search=LargestBatch if settings.batch_size == LARGEST else FrontierSearch
    )
    make = own if settings.options.sampler is None else partial(BoundedSampler, settings.options.sampler)
    return make(
        prepared.space,
        baseline=prepared.baseline,
        description=prepared.description,
        limits=request.limits,
        cores=request.machine.cores,
        on_cpu=request.placement.device is None,
        tolerance=settings.options.tolerance,
        headroom=settings.options.headroom,
        max_oom=settings.options.max_oom,
        warm_start=prepared.warm_start,
    )


def notices(request: TuneRequest, prepared: Prepared, stale: int) -> Iterator[Notice]:
    """Yield what the user should know before the first trial; `stale` is the number of stored trials that do not count."""
    if prepared.warm_start:
        trials = counted(len(prepared.warm_start), "trial")
        yield Notice(f"starting from {trials} of similar tunes (other limits or versions); the choice is confirmed again")
    if stale:
        yield Notice(f"not reused: {counted(stale, 'trial')} of an earlier tune with less memory or time than this one")
    sizes = request.settings.space.batch_size
    if isinstance(sizes, list) and len(sizes) == 2 and _LIKE_A_RANGE * min(sizes) <= max(sizes):
        yield Notice(
            f"space.batch_size lists two choices, {sizes[0]} and {sizes[1]}: no size between them is tried. For a range, "
            f"write {{min: {min(sizes)}, max: {max(sizes)}}}"
        )
    if prepared.description.fixed_batch_size is not None:
        yield one_size_notice(prepared.description)
    if prepared.space.steps_per_execution is None and _is_open(request, prepared.description):
        names = ", ".join(prepared.description.batch_callbacks)
        yield Notice(
            f"steps_per_execution is not tried, because callbacks of batches ({names}) would no longer run after each "
            "batch. To try it, write steps_per_execution: [1, 8, 32] in space"
        )
    for text in (*prepared.description.notices, prepared.few_updates, _no_room_ahead(prepared.space)):
        if text is not None:
            yield Notice(text)


def _space(request: TuneRequest, description: Description, *, min_updates: int | None = None) -> SearchSpace:
    """Build the search space, restricted to what the data takes; `min_updates` replaces the setting of that name."""
    settings, kind = request.settings, KINDS[description.input_kind]
    count = description.sample_count
    present = {**description.defaults, **settings.baseline.values()}
    batch_size = request.baseline(description).batch_size or 1
    if "batch_size" in present or (request.placement.count > 1 and (count is None or batch_size <= count)):
        present["batch_size"] = batch_size  # several devices may not be able to share Keras's default evenly
    asked = settings.space.values()
    steps = [STEPS_PER_EXECUTION] if _searches_steps(request, description) else []
    space = build_space(
        asked,
        (*description.knobs, *steps),
        cores=request.machine.cores,
        sample_count=count,
        baseline=present,
        effective_batch_size=settings.effective_batch_size,
        min_updates=_min_updates(request) if min_updates is None else min_updates,
        autotunes=kind.autotunes,
        on_gpu=request.placement.device is not None,
        has_processes=kind.has_processes,
        replicas=request.placement.count,
    )
    if space.batch_size is None and settings.batch_size == LARGEST:
        raise UsageError(
            f'"{LARGEST}" is given, but the data has one batch size; add a parameter batch_size', key="batch_size"
        )
    if space.batch_size is not None and settings.batch_size == KEEP:
        space = replace(space, batch_size=(batch_size,))
    elif space.batch_size is not None and request.changes_learning and batch_size <= (count or batch_size):
        space = replace(space, batch_size=tuple(sorted({batch_size, *space.batch_size})))
    is_counted = STEPS_PER_EPOCH in request.call_source.fit_kwargs or description.sample_count is None
    space = replace(space, most_samples_executed=count, whole_calls=is_counted)
    if kind.has_processes:
        total, free = host.shared_memory()
        space = replace(
            space,
            workers=(0,) if description.processes_hang else space.workers,
            use_multiprocessing=(True,),
            prefetch_factor=space.prefetch_factor or (description.defaults["prefetch_factor"],),
            most_samples_ahead=math.floor(_SHARED_SHARE * free / max(1, description.sample_bytes)) if total else None,
        )
    elif description.processes_hang and space.use_multiprocessing is not None:
        space = replace(space, use_multiprocessing=(False,))
    if description.fixed_steps_reason:
        space = replace(space, steps_per_execution=(description.defaults[STEPS_PER_EXECUTION],))
    if description.fixed_batch_size is not None:
        space = replace(space, batch_size=(description.fixed_batch_size,))
        if all(len(values) == 1 for values in space.knobs().values()):
            raise UsageError(f"nothing to tune: {description.fixed_batch_size_reason}")
    return space


def _searches_steps(request: TuneRequest, description: Description) -> bool:
    """Return whether steps in a call are searched: the user names them, or `compile` and the callbacks leave them open."""
    settings = request.settings
    if STEPS_PER_EXECUTION not in {**settings.space.values(), **settings.baseline.values()}:
        return _is_open(request, description) and not description.batch_callbacks
    if STEPS_PER_EXECUTION not in description.defaults:
        raise UsageError(
            f"{STEPS_PER_EXECUTION} is given, but it cannot be set for this model (it can with Keras 3 on TensorFlow and "
            "JAX, unless the model defines make_train_function or make_test_function itself); remove "
            f"{STEPS_PER_EXECUTION} from the space",
            key="space",
        )
    return True


def _is_open(request: TuneRequest, description: Description) -> bool:
    """Return whether `compile` left the steps in a call at Keras's default, on one device, for data that is tuned."""
    # Keras validates for whole calls, so `validation_steps` would no longer be what the user asked for; `predict` joins the
    # outputs of a call, which must then have the same shape
    joins_unlike = request.call_source.call == PREDICT and bool(description.shapes)
    is_free = VALIDATION_STEPS not in request.call_source.fit_kwargs and not joins_unlike
    is_default = description.defaults.get(STEPS_PER_EXECUTION) == 1
    return is_free and is_default and request.placement.count == 1 and bool(description.knobs)


def _no_room_ahead(space: SearchSpace) -> str | None:
    """Say that configs are not tried because /dev/shm has no room for their batches; None if all have room."""
    most, factors, sizes = space.most_samples_ahead, space.prefetch_factor or (), space.batch_size or (1,)
    if most is None or not factors or max(space.workers or (0,)) * max(factors) * max(sizes) <= most:
        return None
    return (
        f"/dev/shm has room for {most:,} samples: configs whose workers would hold more there are not tried. To try them, "
        "raise the size of /dev/shm (docker run --shm-size)"
    )


def edge_notice(request: TuneRequest, prepared: Prepared, chosen: FitConfig) -> Notice | None:
    """Say that a batch size above the default space may be faster, if the choice is the largest of that space."""
    settings, sizes = request.settings, prepared.space.batch_size or ()
    is_bounded = prepared.few_updates or settings.effective_batch_size or settings.batch_size != TUNE
    if "batch_size" in settings.space.values() or is_bounded or len(sizes) < 2 or chosen.batch_size != sizes[-1]:
        return None
    if sizes[-1] == prepared.description.sample_count:
        return None
    return Notice(
        f"batch size {sizes[-1]} is the largest that is tried by default; a larger one may be faster. To try larger ones, "
        f"write batch_size: {{min: {sizes[-1]}, max: {16 * sizes[-1]}}} in space"
    )


def of_own_steps(request: TuneRequest, prepared: Prepared, failed: Trial) -> Description | None:
    """Return the description of a workload whose code fails with such steps in a call; None if they are the user's."""
    steps, own = failed.config.steps_per_execution, prepared.baseline.steps_per_execution
    if steps == own or STEPS_PER_EXECUTION in request.settings.space.values():
        return None
    reason = f"your code fails with {STEPS_PER_EXECUTION} {steps} ({failed.measurement.evidence.reason.strip()})"
    return replace(prepared.description, fixed_steps_reason=reason)


def of_one_size(prepared: Prepared, failed: Trial) -> Description:
    """Return the description of a workload whose code fails for batch sizes other than the baseline's."""
    size, error = prepared.baseline.batch_size, failed.measurement.evidence.reason.strip()
    reason = (
        f"your code fails with batch size {failed.config.batch_size}, but runs with {size} ({error}). "
        f"Make the model and the data accept any batch size, or set batch_size: {size} in data_kwargs"
    )
    return replace(prepared.description, fixed_batch_size=size, fixed_batch_size_reason=reason, footprints=())


def one_size_notice(description: Description) -> Notice:
    """Say that the batch size is not tuned, and why."""
    return Notice(f"batch_size is not tuned: {description.fixed_batch_size_reason}")


def own_steps_notice(description: Description) -> Notice:
    """Say that steps in a call are not tuned, and why."""
    own = description.defaults[STEPS_PER_EXECUTION]
    return Notice(f"{STEPS_PER_EXECUTION} stays {own}: {description.fixed_steps_reason}")


def _min_updates(request: TuneRequest) -> int:
    is_bounded = request.call_source.call == FIT and request.settings.batch_size != LARGEST
    return request.settings.options.min_updates if is_bounded else 1


def _few_updates(request: TuneRequest, description: Description, space: SearchSpace) -> str | None:
    """Say that batch sizes are not tried because they leave few updates in an epoch; None if all are tried."""
    fewest, count = _min_updates(request), description.sample_count
    all_sizes = _space(request, description, min_updates=1).batch_size or ()
    left_out = {*all_sizes} - {*(space.batch_size or ())}
    if count is None or not left_out:
        return None
    above = f"above {count // fewest:,} " if count >= fewest else ""
    return (
        f"batch sizes {above}are not tried: they leave fewer than {counted(fewest, 'update')} in an epoch of "
        f"{counted(count, 'sample')}. To try them, set options: {{min_updates: 1}}"
    )
