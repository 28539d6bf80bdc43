"""Texts that the console and the pages share: limits, outcomes, memory of a trial, cells of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofit.records.description import Description
from autofit.records.result import Cell, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Limits, Trial
from autofit.records.units import format_bytes, format_rate

NONE = "–"  # text in place of a missing value


def outcome_label(outcome: Outcome) -> str:
    """Return the label of an outcome: ok, device OOM, host OOM, timeout, crashed or error."""
    return outcome.value.replace("_oom", " OOM")


def limits_in_words(limits: Limits) -> str:
    """Return both limits in one line."""
    device = "no separate limit" if limits.device_bytes is None else format_bytes(limits.device_bytes)
    return f"device {device}, host {format_bytes(limits.host_bytes)}"


def model_in_words(d: Description) -> str:
    """Return the size of the model and of a sample, and the kind of input, in one line."""
    return f"{d.parameter_count:,} parameters, {format_bytes(d.sample_bytes)} per sample, {d.input_kind}"


def peak_share(trial: Trial, limits: Limits | None, memory: str) -> float | None:
    """Return a trial's peak of "device" or "host" memory as a share of its limit; None if either is missing."""
    peak, limit = getattr(trial.measurement, f"{memory}_peak_bytes"), limits and getattr(limits, f"{memory}_bytes")
    return None if peak is None or not limit else float(peak / limit)


def peak_in_words(trial: Trial, limits: Limits | None, memory: str) -> str:
    """Return a trial's peak of "device" or "host" memory, and its share of the limit; a dash without a reading."""
    peak, share = getattr(trial.measurement, f"{memory}_peak_bytes"), peak_share(trial, limits, memory)
    return NONE if peak is None else format_bytes(peak) + ("" if share is None else f" ({share:.0%})")


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
