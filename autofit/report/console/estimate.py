"""An estimate as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.records.estimate import Estimate, EstimateRow
from autofit.records.units import counted, format_bytes
from autofit.report.console.tables import labelled
from autofit.report.wording import PART_NAMES, estimate_facts, limits_in_words


def print_estimate(estimate: Estimate, console: Console) -> None:
    """Print the parts and totals of both memories for each batch size, and the largest batch size expected to fit."""
    d = estimate.description
    facts = {
        "model": f"{d.parameter_count:,} parameters, {format_bytes(d.sample_bytes)} per sample, {d.input_kind}",
        "machine": f"{estimate.device}, {counted(estimate.machine.cores, 'core')}",
        "limits": limits_in_words(estimate.limits),
        **estimate_facts(estimate),
    }
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("batch size")
    for row in estimate.rows:
        table.add_column(f"{row.batch_size}", justify="right")
    _add_parts(table, "DEVICE", [row.device_bytes_by_part for row in estimate.rows])
    _add_parts(table, "HOST", [row.host_bytes_by_part for row in estimate.rows])
    table.add_row("expected to fit", *(_verdict(row, estimate) for row in estimate.rows), style="bold")
    largest = estimate.largest_batch_size
    conclusion = (
        "Not even a batch of 1 is expected to fit."
        if largest is None
        else f"Largest batch expected to fit, upper bounds included: {largest}."
    )
    console.print(labelled(facts.items()), "", table, "", conclusion, sep="\n")


def as_json(estimate: Estimate) -> str:
    """The estimate as JSON text, sizes in bytes."""
    rows = [{**asdict(row), "device_bytes": row.device_bytes, "host_bytes": row.host_bytes} for row in estimate.rows]
    document = {
        "method": estimate.method,
        "relative_error": estimate.relative_error,
        "absolute_error_bytes": estimate.absolute_error_bytes,
        "device": estimate.device,
        "limits": asdict(estimate.limits),
        "config": estimate.config.values(),
        "largest_batch_size": estimate.largest_batch_size,
        "batch_sizes": rows,
    }
    return json.dumps(document, indent=2)


def _add_parts(table: Table, title: str, parts: list[Mapping[str, int]]) -> None:
    table.add_row(Text(title, style="bold"))
    for name in parts[0]:
        if any(part[name] for part in parts):
            table.add_row(f"  {PART_NAMES[name]}", *(format_bytes(part[name]) for part in parts))
    table.add_row("  total", *(format_bytes(sum(part.values())) for part in parts), style="bold", end_section=True)


def _verdict(row: EstimateRow, estimate: Estimate) -> str:
    """Whether a batch size fits: "yes", "no", or "perhaps" if only its upper bound exceeds a limit."""
    if row.fits:
        return "yes"
    limit = estimate.limits.device_bytes
    is_expected = row.host_bytes <= estimate.limits.host_bytes and (limit is None or row.device_bytes <= limit)
    return "perhaps" if is_expected else "no"
