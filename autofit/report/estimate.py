"""An estimate as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.errors import UsageError
from autofit.results import Estimate, EstimateRow
from autofit.units import format_bytes

PLOT_FORMATS = (".png", ".svg")

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
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")  # Paul Tol's "bright"
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


def plot(estimate: Estimate, path: Path) -> None:
    """Draw both memories against the batch size, stacked by part, with their limits; the suffix says the format.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # a second to load, and only for a picture

    figure = Figure(figsize=(11, 5.4), layout="constrained")
    panes = figure.subplots(1, 2)
    limits = estimate.limits
    for pane, title, parts, upper, limit in (
        (
            panes[0],
            f"Device memory ({estimate.device})",
            [r.device_bytes_by_part for r in estimate.rows],
            [r.device_upper_bytes for r in estimate.rows],
            limits.device_bytes,
        ),
        (
            panes[1],
            f"Host memory ({_input(estimate)})",
            [r.host_bytes_by_part for r in estimate.rows],
            [r.host_upper_bytes for r in estimate.rows],
            limits.host_bytes,
        ),
    ):
        _draw(pane, [row.batch_size for row in estimate.rows], parts, upper, limit)
        pane.set_title(title, fontsize=11)
    figure.suptitle(f"Estimated, nothing trained: {estimate.method}, within {estimate.relative_error:.0%}", fontsize=12)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--plot: {path} cannot be written: {error.strerror}") from None


def _draw(pane: Any, sizes: list[int], parts: list[Mapping[str, int]], upper: list[int], limit: int | None) -> None:
    most = max([*upper, *(sum(p.values()) for p in parts)])
    unit, divisor = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    names = list(parts[0])
    heights = [[part[name] / divisor for part in parts] for name in names]
    if len(sizes) > 1:
        pane.stackplot(sizes, heights, labels=[_NAMES[n] for n in names], colors=_COLOURS, linewidth=0)
        pane.plot(sizes, [u / divisor for u in upper], color="black", linestyle=":", linewidth=1, label="upper bound")
        pane.set_xscale("log", base=2)
    else:
        below = 0.0
        for name, height, colour in zip(names, heights, _COLOURS, strict=False):
            pane.bar([str(sizes[0])], height, bottom=below, label=_NAMES[name], color=colour)
            below += height[0]
    if len(sizes) > 1:
        pane.set_xticks(sizes, [str(size) for size in sizes])
        pane.minorticks_off()
        pane.set_xlim(sizes[0], sizes[-1])
    if limit is not None and limit <= 3 * most:
        pane.axhline(limit / divisor, color="#cc3311", linewidth=1.5, label=f"limit {format_bytes(limit)}")
    elif limit is not None:
        pane.plot([], [], color="#cc3311", linewidth=1.5, label=f"limit {format_bytes(limit)} (far above)")
    pane.set_xlabel("batch size")
    pane.set_ylabel(unit)
    pane.set_ylim(0, 1.05 * max(most, limit if limit is not None and limit <= 3 * most else 0) / divisor)
    pane.spines[["top", "right"]].set_visible(False)
    handles, labels = pane.get_legend_handles_labels()
    pane.legend(
        handles[::-1], labels[::-1], fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14)
    )


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
