"""Texts that the console and the pages share: limits, outcomes, cells of a sweep, parts of an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autofit.records.description import XLA, EstimateRecord
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


NONE = "–"  # text in place of a missing value


def estimate_facts(estimate: EstimateRecord) -> dict[str, str]:
    """Return the input and the method of an estimate, and notes on its parts."""
    others, footprint = replace(estimate.config, batch_size=None), estimate.footprint
    least = footprint.absolute_error_bytes
    error = f"{footprint.relative_error:.0%}" + (f" or {format_bytes(least)}, whichever is more" if least else "")
    notes = f"{_PEAK_NOTE} {_XLA_NOTE}" if footprint.method.startswith(XLA) else _PEAK_NOTE
    return {
        "input": str(others) if others.values() else estimate.description.input_kind,
        "method": f"{footprint.method}; 95% of such estimates are within {error} of the measured peak",
        "parts": notes,
    }
