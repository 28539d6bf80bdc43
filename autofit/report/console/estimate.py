"""An estimate as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.records.result import Estimate, EstimateRow
from autofit.records.units import format_bytes

_NAMES = {
    "weights": "weights",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "activations": "activations",
    "temporaries": "temporaries",
    "input_batch": "input batch",
    "process": "process, model, data",
    "step": "train step",
    "queue": "queue",
    "worker_processes": "worker processes",
}
_XLA_NOTE = "With XLA, gradients and activations are in its one buffer, under temporaries."


def print_estimate(estimate: Estimate, console: Console) -> None:
    """Print the parts and totals of both memories for each batch size, and what is expected to fit."""
    d, limits = estimate.description, estimate.limits
    device = "none of its own" if limits.device_bytes is None else format_bytes(limits.device_bytes)
    grid = Table.grid(padding=(0, 2))
    for name, text in (
        ("model", f"{d.parameter_count:,} parameters, {format_bytes(d.sample_bytes)} a sample, {d.input_kind}"),
        ("machine", f"{estimate.device}, {estimate.machine.cores} cores"),
        ("limits", f"device {device}, host {format_bytes(limits.host_bytes)}"),
        ("input", _input(estimate)),
        ("method", f"{estimate.method}; 95 % of such estimates are within {estimate.relative_error:.0%}"),
    ):
        grid.add_row(Text(name, style="bold"), Text(text))
    console.print(grid)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("batch size")
    for row in estimate.rows:
        table.add_column(f"{row.batch_size}", justify="right")
    _add_parts(table, "DEVICE", [row.device_bytes_by_part for row in estimate.rows])
    _add_parts(table, "HOST", [row.host_bytes_by_part for row in estimate.rows])
    table.add_row("expected to fit", *(_verdict(row, estimate) for row in estimate.rows), style="bold")
    console.print()
    console.print(table)
    console.print()
    console.print("Parts are what is held at the moment of the peak; what is freed before it does not show.")
    if estimate.method.startswith("XLA"):
        console.print(_XLA_NOTE)
    largest = estimate.largest_batch_size
    console.print(
        "Not even a batch of 1 is expected to fit."
        if largest is None
        else f"Largest batch expected to fit, upper bounds counted: {largest}."
    )


def as_json(estimate: Estimate) -> str:
    """The estimate as JSON text, sizes in bytes."""
    told: dict[str, Any] = {
        "method": estimate.method,
        "relative_error": estimate.relative_error,
        "device": estimate.device,
        "limits": {"device_bytes": estimate.limits.device_bytes, "host_bytes": estimate.limits.host_bytes},
        "config": estimate.config.values(),
        "largest_batch_size": estimate.largest_batch_size,
        "batch_sizes": [
            {
                "batch_size": row.batch_size,
                "fits": row.fits,
                "device_bytes": row.device_bytes,
                "device_upper_bytes": row.device_upper_bytes,
                "device_bytes_by_part": dict(row.device_bytes_by_part),
                "host_bytes": row.host_bytes,
                "host_upper_bytes": row.host_upper_bytes,
                "host_bytes_by_part": dict(row.host_bytes_by_part),
            }
            for row in estimate.rows
        ],
    }
    return json.dumps(told, indent=2)


def _input(estimate: Estimate) -> str:
    """The knobs beside the batch size."""
    others = replace(estimate.config, batch_size=None)
    return str(others) if others.values() else estimate.description.input_kind


def _add_parts(table: Table, title: str, parts: list[Mapping[str, int]]) -> None:
    table.add_row(Text(title, style="bold"))
    for name in parts[0]:
        if any(part[name] for part in parts):
            table.add_row(f"  {_NAMES[name]}", *(format_bytes(part[name]) for part in parts))
    table.add_row("  total", *(format_bytes(sum(part.values())) for part in parts), style="bold", end_section=True)


def _verdict(row: EstimateRow, estimate: Estimate) -> str:
    if row.fits:
        return "yes"
    limit = estimate.limits.device_bytes
    expected = row.host_bytes <= estimate.limits.host_bytes and (limit is None or row.device_bytes <= limit)
    return "perhaps" if expected else "no"
