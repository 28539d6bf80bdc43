"""The problem that a tune solves: what was asked, what the workload is, and what may be tried.

TuneRequest ──┐  settings, machine, devices, limits, the user's call
Description ──┼──> Problem ──> policy, notices, answers, record
similar tunes ┘  space, baseline, batch size of the first answer
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.errors import NothingFitsError, UsageError
from autofit.machine import host
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.trial import AUTOTUNE, FitConfig, Trial
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

_SHARED_SHARE = (
    0.8  # share of the free space in /dev/shm for batches that worker processes hold ready
)


@dataclass(frozen=True)
class Problem:
    """What a tune has to solve."""

    request: TuneRequest
    description: Description
    space: SearchSpace
    baseline: FitConfig
    warm_start: tuple[Trial, ...] = ()  # of similar tunes, under other limits or versions

    @property
    def own_batch(self) -> int | None:
        """The batch size of the baseline, if the fastest config of that size is an answer of its own."""
        has_two = self.request.settings.batch_size == TUNE and self.request.changes_learning
        return (
            self.baseline.batch_size if has_two and len(self.space.batch_size or ()) > 1 else None
        )

    @property
    def context(self) -> SearchContext:
        """What the models of the search need to know."""
        asked, on_cpu = self.request, self.request.placement.device is None
        tolerance = asked.settings.options.tolerance
        return SearchContext(
            self.description, asked.limits, asked.machine.cores, on_cpu, tolerance, self.warm_start
        )


def build_problem(
    request: TuneRequest, description: Description, similar: Sequence[Trial] = ()
) -> Problem:
    """Build the problem; raise `NothingFitsError` if even the smallest batch cannot fit, and UsageError if none is left."""
    space, limit_bytes = build_space_of(request, description), request.limits.device_bytes
    smallest = space.batch_size[0] if space.batch_size else None
    needed_bytes = least_device_bytes(description, smallest or 1)
    if limit_bytes is not None and needed_bytes > limit_bytes:
        is_lowered = request.lowered.get("device_bytes") == limit_bytes
        raise NothingFitsError(
            "device", smallest, needed_bytes, limit_bytes, estimated=True, is_lowered=is_lowered
        )
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
    return Problem(request, description, space, baseline, tuple(similar))


def build_space_of(request: TuneRequest, description: Description) -> SearchSpace:
    """Build the search space, restricted to what the data takes."""
    settings, kind = request.settings, KINDS[description.input_kind]
    count, defaults = description.sample_count, description.defaults
    if not kind.autotunes and AUTOTUNE in settings.baseline.values().values():
        raise UsageError(f"-1 is not allowed: {NO_AUTOTUNE}", key="baseline")
    present = {**defaults, **settings.baseline.values()}
    batch_size = request.baseline(description).batch_size or 1
    if "batch_size" in present or (
        request.placement.count > 1 and (count is None or batch_size <= count)
    ):
        present["batch_size"] = (
            batch_size  # several devices may not be able to share Keras's default evenly
        )
    steps = [STEPS_PER_EXECUTION] if _searches_steps(request, description) else []
    if not (description.knobs or steps or settings.space.values()):
        reasons = [f"{knobs}: {reason}" for knobs, reason in description.untuned.items()]
        raise UsageError(
            f"nothing to tune: {'; '.join(reasons) or 'every knob is fixed; remove one from data_kwargs'}"
        )
    space = build_space(
        settings.space.values(),
        (*description.knobs, *steps),
        cores=request.machine.cores,
        sample_count=count,
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
        problem = (
            f'"{LARGEST}" is given, but the data has one batch size; add a parameter batch_size'
        )
        raise UsageError(problem, key="batch_size")
    is_counted = STEPS_PER_EPOCH in request.call_source.fit_kwargs or count is None
    changes: dict[str, Any] = {
        "most_samples_executed": count,
        "whole_calls": is_counted,
        "zero_is_one": kind.keras_starts_workers,
    }
    if space.batch_size is not None and settings.batch_size == KEEP:
        changes["batch_size"] = (batch_size,)
    elif (
        space.batch_size is not None
        and request.changes_learning
        and batch_size <= (count or batch_size)
    ):
        changes["batch_size"] = tuple(sorted({batch_size, *space.batch_size}))
    # The trial that opened the data says that more processes would not share it.
    keeps_workers = "workers" in description.knobs and "workers" in description.untuned
    if kind.has_processes:
        total, free = host.shared_memory()
        most_ahead = (
            math.floor(_SHARED_SHARE * free / max(1, description.sample_bytes)) if total else None
        )
        changes |= {"use_multiprocessing": (True,), "most_samples_ahead": most_ahead}
        changes["prefetch_factor"] = space.prefetch_factor or (defaults["prefetch_factor"],)
        changes["workers"] = (0,) if description.processes_hang else space.workers
        if keeps_workers:
            workers = 0 if description.processes_hang else present["workers"]
            changes |= {"workers": (workers,), "prefetch_factor": (present["prefetch_factor"],)}
    elif not kind.keras_starts_workers and makes_processes(description.knobs):
        # tf.data chooses a number of threads, not of processes
        numbers = [workers for workers in space.workers or () if workers != AUTOTUNE]
        changes |= {"use_multiprocessing": (True,), "workers": tuple(numbers)}
    elif description.processes_hang and space.use_multiprocessing is not None:
        changes["use_multiprocessing"] = (False,)
    if description.fixed_batch_size is not None:
        changes["batch_size"] = (description.fixed_batch_size,)
    space = replace(space, **changes)
    if all(len(values) == 1 for values in space.knobs().values()):
        _require_free(description, keeps_workers=keeps_workers)
    return space


def _require_free(description: Description, *, keeps_workers: bool) -> None:
    """Raise UsageError if the data is why every knob of the space has one value."""
    if description.fixed_batch_size is not None:
        raise UsageError(f"nothing to tune: {description.untuned['batch_size']}")
    if keeps_workers:
        raise UsageError(f"nothing to tune: workers: {description.untuned['workers']}")


def _fewest_updates(request: TuneRequest) -> int:
    """Return the fewest updates that an epoch may have; 1 where their number does not matter."""
    is_bounded = request.changes_learning and request.settings.batch_size != LARGEST
    return request.settings.options.min_updates if is_bounded else 1


def _searches_steps(request: TuneRequest, description: Description) -> bool:
    """Return whether steps in a call are searched: the user names them, or `compile` and the callbacks leave them open."""
    settings, default = request.settings, description.defaults.get(STEPS_PER_EXECUTION)
    if STEPS_PER_EXECUTION not in {**settings.space.values(), **settings.baseline.values()}:
        # Keras validates for whole calls, so `validation_steps` would no longer be what the user asked for; `predict` joins
        # the outputs of a call, which must then have the same shape; and callbacks of batches would not run for each batch
        joins_unlike = request.call_source.call == PREDICT and bool(description.shapes)
        is_free = VALIDATION_STEPS not in request.call_source.fit_kwargs and not joins_unlike
        is_usual = default == 1 and request.placement.count == 1 and bool(description.knobs)
        return is_free and is_usual and not description.batch_callbacks
    if default is None:
        able = [each.title for each in BACKENDS.values() if each.has_steps_per_execution]
        raise UsageError(
            f"{STEPS_PER_EXECUTION} is given, but it cannot be set for this model (it can with "
            f"Keras 3 on {' and '.join(able)}, unless the model defines make_train_function or "
            "make_test_function itself); remove it from the space",
            key="space",
        )
    return True


def notices(problem: Problem) -> Iterator[str]:
    """Yield what the user should know before the first trial."""
    request, description, space = problem.request, problem.description, problem.space
    yield from description.notices
    for knobs, reason in description.untuned.items():
        yield f"not tuned: {knobs}: {reason}"
    fewest, count = _fewest_updates(request), description.sample_count or 0
    if fewest > 1 and count // fewest in (space.batch_size or ())[-1:]:
        few = f"they leave fewer than {counted(fewest, 'update')} in an epoch of {description.samples_in_words}"
        yield f"batch sizes above {count // fewest:,} are not tried: {few}. To try them, set options: {{min_updates: 1}}"
    most = space.most_samples_ahead
    largest = math.prod(
        max(values or (0,))
        for values in (space.workers, space.prefetch_factor, space.batch_size or (1,))
    )
    if most is not None and largest > most:
        room = f"/dev/shm has room for {most:,} samples: configs whose workers would hold more there are not tried"
        yield f"{room}. To try them, raise the size of /dev/shm (docker run --shm-size)"
