"""The problem that a tune solves: what was asked, what the workload is, and what may be tried.

TuneRequest ──┐  settings, machine, devices, limits, the user's call
Description ──┼──> Problem ──> policy, notices, answers, record
similar tunes ┘  space, baseline, batch size of the first answer
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.errors import NothingFitsError, UsageError
from autofit.machine import host
from autofit.records.description import Description
from autofit.records.knobs import AUTOTUNE, STEPS_PER_EXECUTION, FitConfig
from autofit.records.trial import Trial
from autofit.records.units import counted
from autofit.search.context import SearchContext
from autofit.search.memory import least_device_bytes
from autofit.search.space import SearchSpace, build_space
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import KEEP, LARGEST, TUNE
from autofit.workload import accumulation
from autofit.workload.fit_options import PREDICT, STEPS_PER_EPOCH, VALIDATION_STEPS
from autofit.workload.inputs.kinds import KINDS
from autofit.workload.inputs.knobs import NO_AUTOTUNE, makes_processes

# share of the free space in /dev/shm for batches that worker processes hold ready
_SHARED_SHARE = 0.8


@dataclass(frozen=True)
class Problem:
    """What a tune has to solve."""

    request: TuneRequest
    description: Description
    space: SearchSpace
    baseline: FitConfig
    # of similar tunes, under other limits or versions
    warm_start: tuple[Trial, ...] = ()

    @property
    def own_batch(self) -> int | None:
        """The batch size of the baseline, if the fastest of that size is an answer of its own."""
        has_two = (
            self.request.settings.batch_size == TUNE and self.request.changes_learning
        )
        has_other_sizes = len(self.space.batch_size or ()) > 1
        return self.baseline.batch_size if has_two and has_other_sizes else None

    @property
    def context(self) -> SearchContext:
        """What the models of the search need to know."""
        request = self.request
        return SearchContext(
            self.description,
            request.limits,
            request.machine.cores,
            request.placement.device is None,
            request.settings.options.tolerance,
            self.warm_start,
        )


def build_problem(
    request: TuneRequest, description: Description, similar: Sequence[Trial] = ()
) -> Problem:
    """Build the problem.

    Raise `NothingFitsError` if even the smallest batch cannot fit, and `UsageError` if no config is
    left.
    """
    space = build_space_of(request, description)
    smallest = space.batch_size[0] if space.batch_size else None
    limit_bytes = request.limits.device_bytes
    needed_bytes = least_device_bytes(description, smallest or 1)
    if limit_bytes is not None and needed_bytes > limit_bytes:
        raise NothingFitsError(
            "device",
            smallest,
            needed_bytes,
            limit_bytes,
            estimated=True,
            is_lowered=request.lowered.get("device_bytes") == limit_bytes,
        )
    whole = request.baseline(description)
    baseline = space.canonical(
        FitConfig.of({knob: getattr(whole, knob) for knob in space.knobs()})
    )
    if description.fixed_batch_size is not None:
        baseline = replace(baseline, batch_size=description.fixed_batch_size)
    if (
        request.settings.effective_batch_size is not None
        and not description.accumulates_by
    ):
        raise UsageError(
            "the train step does not use the optimizer given to compile, so autofit cannot "
            f"accumulate gradients; add a parameter {accumulation.NAME} to build_model and pass "
            "its value to the optimizers that the step uses",
            key="effective_batch_size",
        )
    return Problem(request, description, space, baseline, tuple(similar))


def build_space_of(request: TuneRequest, description: Description) -> SearchSpace:
    """Build the search space, restricted to what the data takes."""
    settings = request.settings
    kind = KINDS[description.input_kind]
    if not kind.autotunes and AUTOTUNE in settings.baseline.values().values():
        raise UsageError(f"-1 is not allowed: {NO_AUTOTUNE}", key="baseline")
    present = _present_values(request, description)
    steps = [STEPS_PER_EXECUTION] if _searches_steps(request, description) else []
    if not (description.knobs or steps or settings.space.values()):
        reasons = [
            f"{knobs}: {reason}" for knobs, reason in description.untuned.items()
        ]
        problem = (
            "; ".join(reasons) or "every knob is fixed; remove one from data_kwargs"
        )
        raise UsageError(f"nothing to tune: {problem}")
    space = build_space(
        settings.space.values(),
        (*description.knobs, *steps),
        cores=request.machine.cores,
        sample_count=description.sample_count,
        baseline=present,
        effective_batch_size=settings.effective_batch_size,
        min_updates=_fewest_updates(request),
        autotunes=kind.autotunes,
        on_gpu=request.placement.device is not None,
        has_processes=kind.has_processes,
        replicas=request.placement.count,
        stacks_steps=description.stacks_steps,
    )
    if space.batch_size is None and settings.batch_size == LARGEST:
        problem = f'"{LARGEST}" is given, but the data has one batch size'
        raise UsageError(f"{problem}; add a parameter batch_size", key="batch_size")
    count = description.sample_count
    space = replace(
        space,
        most_samples_executed=count,
        whole_calls=count is None or STEPS_PER_EPOCH in request.call_source.fit_kwargs,
        zero_is_one=kind.keras_starts_workers,
        batch_size=_batch_sizes(request, description, space),
        **_workers(description, space, present),
    )
    if all(len(values) == 1 for values in space.knobs().values()):
        _require_free(description)
    return space


def _present_values(request: TuneRequest, description: Description) -> dict[str, Any]:
    """Return the values that the knobs have now, as far as they are known."""
    count = description.sample_count
    batch_size = request.baseline(description).batch_size or 1
    present = {**description.defaults, **request.settings.baseline.values()}
    # several devices may not be able to share Keras's default evenly
    is_shared = request.placement.count > 1 and (count is None or batch_size <= count)
    if "batch_size" in present or is_shared:
        present["batch_size"] = batch_size
    return present


def _batch_sizes(
    request: TuneRequest, description: Description, space: SearchSpace
) -> tuple[int, ...] | None:
    """Return the batch sizes of a space, with that of the baseline or it alone, as is asked."""
    if description.fixed_batch_size is not None:
        return (description.fixed_batch_size,)
    sizes = space.batch_size
    if sizes is None:
        return None
    own = request.baseline(description).batch_size or 1
    if request.settings.batch_size == KEEP:
        return (own,)
    if request.changes_learning and own <= (description.sample_count or own):
        sizes = tuple(sorted({own, *sizes}))
    return sizes


def _workers(
    description: Description, space: SearchSpace, present: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a space has of workers and their processes, by the kind of the data."""
    kind = KINDS[description.input_kind]
    if kind.has_processes:
        # the workers are processes, which share memory in /dev/shm
        total, free = host.shared_memory()
        most_ahead = None
        if total:
            share = _SHARED_SHARE * free
            most_ahead = math.floor(share / max(1, description.sample_bytes))
        workers = space.workers
        factors = space.prefetch_factor or (description.defaults["prefetch_factor"],)
        if _keeps_workers(description):
            workers = (present["workers"],)
            factors = (present["prefetch_factor"],)
        if description.processes_hang:
            workers = (0,)
        return {
            "use_multiprocessing": (True,),
            "most_samples_ahead": most_ahead,
            "workers": workers,
            "prefetch_factor": factors,
        }
    if not kind.keras_starts_workers and makes_processes(description.knobs):
        # tf.data chooses a number of threads, not of processes
        numbers = tuple(
            workers for workers in space.workers or () if workers != AUTOTUNE
        )
        return {"use_multiprocessing": (True,), "workers": numbers}
    if description.processes_hang and space.use_multiprocessing is not None:
        return {"use_multiprocessing": (False,)}
    return {}


def _keeps_workers(description: Description) -> bool:
    """Return whether the trial that opened the data said that more processes would not share it."""
    return "workers" in description.knobs and "workers" in description.untuned


def _require_free(description: Description) -> None:
    """Raise UsageError if the data is why every knob of the space has one value."""
    if description.fixed_batch_size is not None:
        raise UsageError(f"nothing to tune: {description.untuned['batch_size']}")
    if _keeps_workers(description):
        raise UsageError(f"nothing to tune: workers: {description.untuned['workers']}")


def _fewest_updates(request: TuneRequest) -> int:
    """Return the fewest updates that an epoch may have; 1 where their number does not matter."""
    is_bounded = request.changes_learning and request.settings.batch_size != LARGEST
    return request.settings.options.min_updates if is_bounded else 1


def _searches_steps(request: TuneRequest, description: Description) -> bool:
    """Return whether steps in a call are searched.

    They are if the user names them, or if `compile` and the callbacks leave them open.
    """
    settings = request.settings
    default = description.defaults.get(STEPS_PER_EXECUTION)
    if STEPS_PER_EXECUTION not in {
        **settings.space.values(),
        **settings.baseline.values(),
    }:
        # Keras validates for whole calls, so these would no longer be what the user asked for
        has_steps = VALIDATION_STEPS in request.call_source.fit_kwargs
        # `predict` joins the outputs of a call, which must then have the same shape
        joins_unlike = request.call_source.call == PREDICT and bool(description.shapes)
        # callbacks of batches would not run for each batch
        is_heard = bool(description.batch_callbacks)
        is_usual = (
            default == 1 and request.placement.count == 1 and bool(description.knobs)
        )
        return is_usual and not (has_steps or joins_unlike or is_heard)
    if default is None:
        able = [
            each.title for each in BACKENDS.values() if each.has_steps_per_execution
        ]
        raise UsageError(
            f"{STEPS_PER_EXECUTION} is given, but it cannot be set for this model (it can with "
            f"Keras 3 on {' and '.join(able)}, unless the model defines make_train_function or "
            "make_test_function itself); remove it from the space",
            key="space",
        )
    return True


def notices(problem: Problem) -> Iterator[str]:
    """Yield what the user should know before the first trial."""
    description = problem.description
    yield from description.notices
    for knobs, reason in description.untuned.items():
        yield f"not tuned: {knobs}: {reason}"
    space = problem.space
    # larger batches would leave few updates
    fewest = _fewest_updates(problem.request)
    most = (description.sample_count or 0) // fewest
    if fewest > 1 and space.batch_size and space.batch_size[-1] == most:
        updates = counted(fewest, "update")
        few = f"they leave fewer than {updates} in an epoch of {description.samples_in_words}"
        remedy = "To try them, set options: {min_updates: 1}"
        yield f"batch sizes above {most:,} are not tried: {few}. {remedy}"
    # worker processes could hold more in /dev/shm than it has room for
    ahead = space.most_samples_ahead
    factors = (space.workers, space.prefetch_factor, space.batch_size or (1,))
    largest = math.prod(max(values or (0,)) for values in factors)
    if ahead is not None and largest > ahead:
        effect = "configs whose workers would hold more there are not tried"
        remedy = "To try them, raise the size of /dev/shm (docker run --shm-size)"
        yield f"/dev/shm has room for {ahead:,} samples: {effect}. {remedy}"
