"""What the user should know before the first trial, and about the choice: functions that return a sentence or None."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.records.description import Description
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.trial import FitConfig, Limits
from autofit.records.units import counted, format_bytes
from autofit.tuning.problem import Problem, build_space_of, fewest_updates, steps_are_open
from autofit.tuning.settings import TUNE


def before(problem: Problem) -> Iterator[str]:
    """Yield what the user should know before the first trial."""
    yield from problem.description.notices
    yield from fixed(problem.description)
    for notice in (_callbacks_of_batches, _few_updates, _no_room_ahead):
        if (text := notice(problem)) is not None:
            yield text


def fixed(description: Description) -> Iterator[str]:
    """Yield which knobs are not tuned, and why."""
    if description.fixed_batch_size is not None:
        yield f"batch_size is not tuned: {description.fixed_batch_size_reason}"
    if description.fixed_steps_reason:
        own = description.defaults[STEPS_PER_EXECUTION]
        yield f"{STEPS_PER_EXECUTION} stays {own}: {description.fixed_steps_reason}"


def _callbacks_of_batches(problem: Problem) -> str | None:
    if problem.space.steps_per_execution is not None or not steps_are_open(problem.request, problem.description):
        return None
    names = ", ".join(problem.description.batch_callbacks)
    return (
        f"steps_per_execution is not tried, because callbacks of batches ({names}) would no longer run after each "
        "batch. To try it, write steps_per_execution: [1, 8, 32] in space"
    )


def _few_updates(problem: Problem) -> str | None:
    fewest, count = fewest_updates(problem.request), problem.description.sample_count
    if count is None or fewest == 1:
        return None
    all_sizes = build_space_of(problem.request, problem.description, min_updates=1).batch_size or ()
    if not {*all_sizes} - {*(problem.space.batch_size or ())}:
        return None
    above = f"above {count // fewest:,} " if count >= fewest else ""
    return (
        f"batch sizes {above}are not tried: they leave fewer than {counted(fewest, 'update')} in an epoch of "
        f"{counted(count, 'sample')}. To try them, set options: {{min_updates: 1}}"
    )


def _no_room_ahead(problem: Problem) -> str | None:
    space = problem.space
    most, factors, sizes = space.most_samples_ahead, space.prefetch_factor or (), space.batch_size or (1,)
    if most is None or not factors or max(space.workers or (0,)) * max(factors) * max(sizes) <= most:
        return None
    return (
        f"/dev/shm has room for {most:,} samples: configs whose workers would hold more there are not tried. To try them, "
        "raise the size of /dev/shm (docker run --shm-size)"
    )


def lowered(limits: Limits) -> str:
    """Say that limits are lower than asked, because of `Result.failed`."""
    device = f", {format_bytes(limits.device_bytes)} of device memory" if limits.device_bytes else ""
    most = f"{format_bytes(limits.host_bytes)} of host memory{device}"
    return f"your training ran out of memory with an earlier result: trials may take at most {most}"


def largest_tried(problem: Problem, chosen: FitConfig) -> str | None:
    """Say that a batch size above the default space may be faster, if the choice is the largest of that space."""
    settings, sizes = problem.settings, tuple[int, ...](problem.space.batch_size or ())
    is_bounded = settings.effective_batch_size or settings.batch_size != TUNE or _few_updates(problem)
    if "batch_size" in settings.space.values() or is_bounded or len(sizes) < 2 or chosen.batch_size != sizes[-1]:
        return None
    if sizes[-1] == problem.description.sample_count:
        return None
    return (
        f"batch size {sizes[-1]} is the largest that is tried by default; a larger one may be faster. To try larger ones, "
        f"write batch_size: {{min: {sizes[-1]}, max: {16 * sizes[-1]}}} in space"
    )
