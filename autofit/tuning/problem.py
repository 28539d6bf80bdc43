"""The problem that a tune solves: what was asked, what the workload is, and what may be tried.

    TuneRequest ──┐  settings, machine, devices, limits, the user's call
    Description ──┼──> Problem ──> sampler, notices, confirmation, record
    similar tunes ┘  space, baseline, batch size of the first answer

A problem is built once and passed to all that follows; it does not change. Only where the user's code fails with a value
of a knob is another one built without that value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofit.errors import NothingFitsError, UsageError
from autofit.machine import host
from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.trial import FitConfig, Limits, Trial
from autofit.search.context import SearchContext
from autofit.search.memory import least_device_bytes
from autofit.search.space import SearchSpace, build_space
from autofit.tuning.request import TuneRequest
from autofit.tuning.settings import KEEP, LARGEST, TUNE, TuneSettings
from autofit.workload import accumulation
from autofit.workload.fit_options import FIT, PREDICT, STEPS_PER_EPOCH, VALIDATION_STEPS
from autofit.workload.inputs.kinds import KINDS

_SHARED_SHARE = 0.8  # share of the free space in /dev/shm for batches that worker processes hold ready


@dataclass(frozen=True)
class Problem:
    """What a tune has to solve.

    `warm_start` are the trials of similar tunes, under other limits or versions.
    """

    request: TuneRequest
    description: Description
    space: SearchSpace
    baseline: FitConfig
    warm_start: tuple[Trial, ...] = ()

    @property
    def settings(self) -> TuneSettings:
        return self.request.settings

    @property
    def limits(self) -> Limits:
        return self.request.limits

    @property
    def own_batch(self) -> int | None:
        """The batch size of the baseline, if the fastest config of that size is an answer of its own."""
        has_two = self.settings.batch_size == TUNE and self.request.changes_learning
        return self.baseline.batch_size if has_two and len(self.space.batch_size or ()) > 1 else None

    @property
    def baseline_may_win(self) -> bool:
        """Whether the baseline can be an answer; it cannot if the user's space does not contain it."""
        return self.baseline in self.space

    def allows(self, config: FitConfig) -> bool:
        """Return whether trials of a config count."""
        return config in self.space or config == self.baseline

    @property
    def context(self) -> SearchContext:
        """What the models of the search need to know."""
        options = self.settings.options
        return SearchContext(
            self.description,
            self.limits,
            cores=self.request.machine.cores,
            on_cpu=self.request.placement.device is None,
            tolerance=options.tolerance,
            headroom=options.headroom,
            max_oom=options.max_oom,
            warm_start=self.warm_start,
        )


def build_problem(request: TuneRequest, description: Description, similar: Sequence[Trial] = ()) -> Problem:
    """Build the problem; raise `NothingFitsError` if even the smallest batch cannot fit, and UsageError if none is left."""
    space, limit_bytes = build_space_of(request, description), request.limits.device_bytes
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
    steps = description.defaults.get(STEPS_PER_EXECUTION)  # which the configs of similar tunes may not name
    named = (replace(t.config, steps_per_execution=t.config.steps_per_execution or steps) for t in similar)
    warm_start = tuple(replace(trial, config=config) for trial, config in zip(similar, named, strict=True))
    return Problem(request, description, space, baseline, warm_start)


def build_space_of(request: TuneRequest, description: Description, *, min_updates: int | None = None) -> SearchSpace:
    """Build the search space, restricted to what the data takes; `min_updates` replaces the option of that name."""
    settings, kind = request.settings, KINDS[description.input_kind]
    count, defaults = description.sample_count, description.defaults
    present = {**defaults, **settings.baseline.values()}
    batch_size = request.baseline(description).batch_size or 1
    if "batch_size" in present or (request.placement.count > 1 and (count is None or batch_size <= count)):
        present["batch_size"] = batch_size  # several devices may not be able to share Keras's default evenly
    steps = [STEPS_PER_EXECUTION] if _searches_steps(request, description) else []
    space = build_space(
        settings.space.values(),
        (*description.knobs, *steps),
        cores=request.machine.cores,
        sample_count=count,
        baseline=present,
        effective_batch_size=settings.effective_batch_size,
        min_updates=fewest_updates(request) if min_updates is None else min_updates,
        autotunes=kind.autotunes,
        on_gpu=request.placement.device is not None,
        has_processes=kind.has_processes,
        replicas=request.placement.count,
    )
    if space.batch_size is None and settings.batch_size == LARGEST:
        raise UsageError(
            f'"{LARGEST}" is given, but the data has one batch size; add a parameter batch_size', key="batch_size"
        )
    is_counted = STEPS_PER_EPOCH in request.call_source.fit_kwargs or count is None
    changes: dict[str, Any] = {"most_samples_executed": count, "whole_calls": is_counted}
    if space.batch_size is not None and settings.batch_size == KEEP:
        changes["batch_size"] = (batch_size,)
    elif space.batch_size is not None and request.changes_learning and batch_size <= (count or batch_size):
        changes["batch_size"] = tuple(sorted({batch_size, *space.batch_size}))
    if kind.has_processes:
        total, free = host.shared_memory()
        most_ahead = math.floor(_SHARED_SHARE * free / max(1, description.sample_bytes)) if total else None
        changes |= {"use_multiprocessing": (True,), "most_samples_ahead": most_ahead}
        changes["prefetch_factor"] = space.prefetch_factor or (defaults["prefetch_factor"],)
        changes["workers"] = (0,) if description.processes_hang else space.workers
    elif description.processes_hang and space.use_multiprocessing is not None:
        changes["use_multiprocessing"] = (False,)
    if description.fixed_steps_reason:
        changes["steps_per_execution"] = (defaults[STEPS_PER_EXECUTION],)
    if description.fixed_batch_size is not None:
        changes["batch_size"] = (description.fixed_batch_size,)
    space = replace(space, **changes)
    if description.fixed_batch_size is not None and all(len(values) == 1 for values in space.knobs().values()):
        raise UsageError(f"nothing to tune: {description.fixed_batch_size_reason}")
    return space


def fewest_updates(request: TuneRequest) -> int:
    """Return the fewest updates that an epoch may have; 1 where their number does not matter."""
    is_bounded = request.call_source.call == FIT and request.settings.batch_size != LARGEST
    return request.settings.options.min_updates if is_bounded else 1


def _searches_steps(request: TuneRequest, description: Description) -> bool:
    """Return whether steps in a call are searched: the user names them, or `compile` and the callbacks leave them open."""
    settings = request.settings
    if STEPS_PER_EXECUTION not in {**settings.space.values(), **settings.baseline.values()}:
        return steps_are_open(request, description) and not description.batch_callbacks
    if STEPS_PER_EXECUTION not in description.defaults:
        raise UsageError(
            f"{STEPS_PER_EXECUTION} is given, but it cannot be set for this model (it can with Keras 3 on TensorFlow and "
            "JAX, unless the model defines make_train_function or make_test_function itself); remove "
            f"{STEPS_PER_EXECUTION} from the space",
            key="space",
        )
    return True


def steps_are_open(request: TuneRequest, description: Description) -> bool:
    """Return whether `compile` left the steps in a call at Keras's default, on one device, for data that is tuned."""
    # Keras validates for whole calls, so `validation_steps` would no longer be what the user asked for; `predict` joins the
    # outputs of a call, which must then have the same shape
    joins_unlike = request.call_source.call == PREDICT and bool(description.shapes)
    is_free = VALIDATION_STEPS not in request.call_source.fit_kwargs and not joins_unlike
    is_default = description.defaults.get(STEPS_PER_EXECUTION) == 1
    return is_free and is_default and request.placement.count == 1 and bool(description.knobs)


def with_fixed_steps(problem: Problem, failed: Trial) -> Description | None:
    """Return the description of a workload whose code fails with such steps in a call; None if they are the user's."""
    steps, own = failed.config.steps_per_execution, problem.baseline.steps_per_execution
    if steps == own or STEPS_PER_EXECUTION in problem.settings.space.values():
        return None
    reason = f"your code fails with {STEPS_PER_EXECUTION} {steps} ({failed.measurement.evidence.reason.strip()})"
    return replace(problem.description, fixed_steps_reason=reason)


def with_fixed_batch_size(problem: Problem, failed: Trial) -> Description:
    """Return the description of a workload whose code fails for batch sizes other than the baseline's."""
    size, error = problem.baseline.batch_size, failed.measurement.evidence.reason.strip()
    reason = (
        f"your code fails with batch size {failed.config.batch_size}, but runs with {size} ({error}). "
        f"Make the model and the data accept any batch size, or set batch_size: {size} in data_kwargs"
    )
    return replace(problem.description, fixed_batch_size=size, fixed_batch_size_reason=reason, footprints=())
