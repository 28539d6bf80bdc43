"""Texts that the console and the pages share: limits, outcomes, cells of a sweep, parts of an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autofit.records.description import XLA, Estimate
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome
from autofit.records.sweep import Cell
from autofit.records.trial import Limits
from autofit.records.units import format_bytes, format_rate

_PART_NAMES = {"optimizer": "optimizer state", "process": "process, model, data", "step": "train step"}
_PEAK_NOTE = "The parts show what the process holds at its peak; memory freed before the peak is not included."
_XLA_NOTE = "XLA keeps gradients and activations in one buffer; it counts as temporaries."


def outcome_label(outcome: Outcome) -> str:
    """Return the label of an outcome: ok, device OOM, host OOM, timeout, crashed or error."""
    return outcome.value.replace("_oom", " OOM")


def part_name(part: str) -> str:
    """Return the label of a part of an estimate."""
    return _PART_NAMES.get(part, part.replace("_", " "))


def limits_in_words(limits: Limits) -> str:
    """Return both limits in one line."""
    device = "no separate limit" if limits.device_bytes is None else format_bytes(limits.device_bytes)
    return f"device {device}, host {format_bytes(limits.host_bytes)}"


def share_on_each(record: TuneRecord) -> str:
    """Return the share of a batch on each of several devices; empty for one device."""
    batch, devices = record.config.batch_size, record.placement.count
    return "" if devices == 1 or not batch else f"batch {batch} is global: {batch // devices} on each of {devices} devices"


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Return a short name for each axis: the last part of its name, or the whole name if two axes share the last part."""
    last = {axis: [name.rpartition(".")[2].strip() for name in axis.split(",")] for axis in axes}
    short = {axis: " = ".join(dict.fromkeys(names)) for axis, names in last.items()}
    return {axis: name if list(short.values()).count(name) == 1 else axis for axis, name in short.items()}


def cell_label(values: Mapping[str, Any]) -> str:
    """Return the values of a cell in one line."""
    names = short_names(tuple(values))
    return ", ".join(f"{names[axis]} {value}" for axis, value in values.items()) or "the only cell"


def cell_outcome(cell: Cell) -> str:
    """Return the result of a cell in one line."""
    if cell.result is not None:
        return f"fastest: {cell.result.config}, {format_rate(cell.result.samples_per_second)} samples/s"
    return f"{cell.outcome}: {cell.problem_line}"


NONE = "–"
"""Text in place of a missing value."""

GPU_COLUMNS = ("GPU", "memory", "a program gets", "largest batch", "takes", "share")
"""The columns of the table of GPUs."""


def gpu_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """Return a row of `GPU_COLUMNS` for each GPU of an estimate."""
    rows: list[tuple[str, ...]] = []
    for gpu in estimate.gpus:
        memory = (gpu.gpu, format_bytes(gpu.total_bytes), format_bytes(gpu.usable_bytes))
        largest = next((each for each in gpu.footprints if each.batch_size == gpu.largest_batch_size), None)
        if largest is None:
            rows.append((*memory, "none fits" if gpu.footprints else "unknown", NONE, NONE))
            continue
        share = largest.device_bytes / gpu.usable_bytes
        rows.append((*memory, f"{largest.batch_size:,}", format_bytes(largest.device_bytes), f"{share:.0%}"))
    return rows


def gpu_notes(estimate: Estimate) -> list[str]:
    """Return sentences about GPUs for which something differs, and about what the estimate lacks."""
    notes = [f"{gpu.gpu}: {gpu.problem}" for gpu in estimate.gpus if gpu.problem]
    notes += [
        f"{gpu.gpu}: from a batch of about {gpu.recomputes_from:,} on, XLA computes values again instead of keeping them: "
        "steps are slower, and larger batches may fit"
        for gpu in estimate.gpus
        if gpu.recomputes_from
    ]
    count = estimate.description.sample_count
    if count is not None and any((gpu.largest_batch_size or 0) > 0.9 * count for gpu in estimate.gpus):
        notes.append(f"The data has {count:,} samples, so no larger batch was tried.")
    if estimate.footprint.method.startswith(XLA):
        notes.append(
            "Not included: workspaces of cuDNN, and what the first step tries. The largest batch leaves room for the error "
            "stated above."
        )
    return notes


def estimate_facts(estimate: Estimate) -> dict[str, str]:
    """Return the input and the method of an estimate, and notes on its parts."""
    others, footprint = replace(estimate.config, batch_size=None), estimate.footprint
    least = footprint.absolute_error_bytes
    error = f"{footprint.relative_error:.0%}" + (f" or {format_bytes(least)}, whichever is more" if least else "")
    notes = f"{_PEAK_NOTE} {_XLA_NOTE}" if footprint.method.startswith(XLA) else _PEAK_NOTE
    if estimate.gpus:
        notes = f"A program gets what {estimate.description.versions['backend']} takes by default. {notes}"
    return {
        "input": str(others) if others.values() else estimate.description.input_kind,
        "method": f"{footprint.method}; 95% of such estimates are within {error} of the measured peak",
        "parts": notes,
    }
