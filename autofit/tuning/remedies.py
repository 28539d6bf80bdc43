"""Explain an epoch by what has run: its parts, and what each remedy gives."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autofit.errors import UsageError
from autofit.records import confidence
from autofit.records.epoch import Epoch, EpochRecord, PartName, Remedy, epoch_of
from autofit.records.knobs import FitConfig
from autofit.records.result import CallSource, TuneLog, TuneRecord
from autofit.records.trial import Measurement, Trial, noise_of
from autofit.records.units import format_bytes
from autofit.search.context import ConfigArrays, SearchContext
from autofit.search.memory import Memory
from autofit.search.rates import run_noise
from autofit.search.space import batch_grid
from autofit.workload.inputs.kinds import KINDS

# of an epoch: changes to a smaller part are neither tried nor listed
LEAST_SHARE = 0.1
# of those of one kind that a saved tune has tried
_MOST_SHOWN = 2
_LARGEST_BATCH = 2**16
# Largest relative standard deviation that a run is said to have. A run of two short epochs would
# often claim more, but plain runs of ten changed scripts in eleven differed by less (measured).
_MOST_NOISE = 0.2
# what would help, and the share of the part that it saves, if that is certain
_CHANGES: dict[PartName, tuple[str, float]] = {
    "data": ("other workers or queues", 0.0),
    "compiling": ("batches padded to a few lengths", 0.0),
    "step": ("jit_compile, or another backend (autofit sweep)", 0.0),
    "keras": ("several steps a call (steps_per_execution)", 0.0),
    "start": ("two epochs in one (repeat the data)", 0.5),
    "validation": ("half as often (validation_freq)", 0.5),
}


def explain_saved(record: TuneRecord) -> EpochRecord:
    """Explain an epoch with the baseline of a saved tune, or with its answer if that did not run.

    Raise UsageError if neither ran.
    """
    ran = [trial.config for trial in record.readings if trial.samples_per_second]
    for config in (record.speedup.baseline, record.config):
        if config in ran:
            return explain(record, config)
    raise UsageError("the result has no trial that finished; tune again, and save it")


def explain(
    log: TuneLog, baseline: FitConfig, compiled: Trial | None = None
) -> EpochRecord:
    """Return the parts of an epoch and the remedies, by what has run.

    `compiled` is a trial of the baseline with `jit_compile`, if there was one.
    """
    description = log.description
    assert description is not None
    readings = log.readings
    epoch = epoch_of(description, baseline, readings)
    on_cpu = log.placement.device is None
    context = SearchContext(description, log.limits, log.machine.cores, on_cpu)
    # a run of two epochs says little of its own scatter: all runs are precise to the same degree
    within = statistics.harmonic_mean(
        [noise_of(trial.measurement.spread) for trial in readings]
    )
    noise = math.hypot(min(within, _MOST_NOISE), run_noise(context))
    remedies = list(_tried(readings, epoch, noise))
    if compiled is not None:
        by_compiler = Remedy("step", "jit_compile=True")
        runs = [compiled.measurement]
        remedies.append(_measured(by_compiler, runs, epoch, noise))
    remedies += _untried({each.part for each in remedies}, epoch, context)
    return EpochRecord(
        **vars(epoch),
        program=_program(log.call_source),
        cause=epoch.cause_over(description.epochs),
        remedies=tuple(remedies),
        notes=tuple(_notes(epoch, context)),
        largest_batch_size=_largest_batch(context, baseline, readings),
        limits=log.limits,
        trials=len(readings) + (compiled is not None),
        took_seconds=log.seconds,
    )


def _program(source: CallSource) -> str:
    """Return the name of a script without its folder and its arguments, or those of functions."""
    names = shlex.split(source.script)[1:]
    if not names:
        return f"{source.model} with {source.data}"
    return " ".join(names[:2]) if names[0] == "-m" else Path(names[0]).name


def _tried(readings: Sequence[Trial], epoch: Epoch, noise: float) -> Iterator[Remedy]:
    """Yield the changes of one kind that have run, the best ones of each first."""
    own = epoch.config
    # other workers change all of these
    by_workers: tuple[PartName, ...] = ("data", "contention", "start")
    largest = max(by_workers, key=epoch.parts.__getitem__)
    found: dict[PartName, list[Remedy]] = {largest: [], "keras": []}
    for config in dict.fromkeys(trial.config for trial in readings):
        own_steps = replace(config, steps_per_execution=own.steps_per_execution)
        if config == own or config.batch_size != own.batch_size:
            continue
        part = largest
        change = str(replace(config, batch_size=None, steps_per_execution=None))
        if own_steps == own:
            part = "keras"
            change = f"{config.steps_per_execution} steps a call"
        elif own_steps != config:
            continue
        runs = [trial.measurement for trial in readings if trial.config == config]
        remedy = Remedy(part, change, config=config)
        found[part].append(_measured(remedy, runs, epoch, noise))
    for of_part in found.values():
        of_part.sort(key=lambda each: each.seconds or math.inf)
        yield from of_part[:_MOST_SHOWN]


def _measured(
    remedy: Remedy, runs: Sequence[Measurement], epoch: Epoch, noise: float
) -> Remedy:
    """Return a remedy with the seconds of an epoch that runs of it have read, or why none has.

    `noise` is the relative standard deviation of a run.
    """
    last = runs[-1]
    valid = [run for run in runs if run.samples_per_second and not run.is_disturbed]
    if not valid:
        note = "tried, but other work disturbed it"
        return replace(remedy, note=note if last.is_disturbed else last.evidence.reason)
    # the interval is that of a single run, as the next one will be
    middle = sorted(valid, key=lambda run: run.samples_per_second or 0.0)[
        len(valid) // 2
    ]
    rate = middle.samples_per_second or 0.0
    seconds = epoch.samples / rate + epoch.parts["validation"]
    factor = math.exp(confidence.deviations() * noise)
    return replace(remedy, seconds=seconds, low=seconds / factor, high=seconds * factor)


def _untried(
    tried: set[PartName], epoch: Epoch, context: SearchContext
) -> Iterator[Remedy]:
    """Yield what would help a large part, and what of it follows from other readings."""
    for part, (change, share) in _CHANGES.items():
        seconds = epoch.parts[part]
        if seconds < LEAST_SHARE * epoch.seconds:
            continue
        if part not in tried:
            note = "not tried"
            if part == "data":
                note = _why_no_workers(context) or note
            saved = epoch.seconds - share * seconds if share else None
            yield Remedy(part, change, saved, note="" if share else note)
    yield from _kept_in_memory(epoch, context)


def _why_no_workers(context: SearchContext) -> str:
    # the reason of several knobs has the names of all
    untuned = context.description.untuned.items()
    return next((reason for knobs, reason in untuned if "workers" in knobs), "")


def _kept_in_memory(epoch: Epoch, context: SearchContext) -> Iterator[Remedy]:
    """Yield what an epoch takes without waiting for its input, if that is not in memory yet."""
    description = context.description
    by_input: tuple[PartName, ...] = ("data", "contention")
    waiting = sum(epoch.parts[part] for part in by_input)
    is_in_memory = KINDS[description.input_kind].fit_makes_batches
    if is_in_memory or not epoch.is_length_known:
        return
    if waiting < LEAST_SHARE * epoch.seconds:
        return
    largest = max(by_input, key=epoch.parts.__getitem__)
    needed = epoch.samples * description.sample_bytes
    free = context.limits.host_bytes - (epoch.run.host_peak_bytes or 0)
    change = f"data kept in memory ({format_bytes(needed)})"
    if needed > free:
        yield Remedy(largest, change, note=f"only {format_bytes(free)} are free")
    else:
        seconds = epoch.seconds - waiting
        yield Remedy(largest, change, seconds, note="if it does not change")


def _notes(epoch: Epoch, context: SearchContext) -> Iterator[str]:
    conditions = epoch.run.conditions
    if conditions is not None and epoch.run.is_disturbed:
        yield (
            f"{conditions.other_work}: all of this takes longer than on an idle machine. End that "
            "work, and ask again"
        )
    if not epoch.is_length_known:
        yield f"the data does not tell its length: these are {epoch.steps:,} steps"
    if epoch.run.epoch_gap_unread:
        yield f"the start of an epoch is not in it: {epoch.run.epoch_gap_unread}"
    if left_out := ", ".join(context.description.left_out_callbacks):
        yield f"trials left out {left_out}: what they take is not in it"
    if context.on_cpu:
        yield (
            "on a CPU, copies to a GPU and callbacks that make each step wait for the GPU cannot "
            "be measured"
        )


def _largest_batch(
    context: SearchContext, baseline: FitConfig, readings: Sequence[Trial]
) -> int | None:
    """Return the largest batch that is expected to fit; None if the batch is not a knob."""
    own = baseline.batch_size
    description = context.description
    if own is None or description.fixed_batch_size is not None:
        return None
    most = max(own, min(description.sample_count or _LARGEST_BATCH, _LARGEST_BATCH))
    sizes = batch_grid(own, most)
    configs = ConfigArrays(
        [replace(baseline, batch_size=size) for size in sizes], context.cores
    )
    upper = Memory(context, readings).upper_bytes(configs)
    fitting = [
        size
        for size, (device, host) in zip(sizes, upper.T, strict=True)
        if context.limits.allow(device, host)
    ]
    return max(fitting, default=None)
