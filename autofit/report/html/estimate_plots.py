"""Plots of an estimate: device and host memory of each batch size, stacked by part, with bound and limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.estimate import Estimate
from autofit.records.units import format_bytes
from autofit.report.html import style
from autofit.report.html.style import BAR_LOOKS, BLACK, VERMILION, MemoryScale, Plot
from autofit.report.wording import PART_NAMES


@dataclass(frozen=True)
class Column:
    """One memory of one batch size, in bytes."""

    batch_size: int
    parts: Mapping[str, int]
    bound: int
    limit: int | None

    @property
    def total(self) -> int:
        """The expected memory."""
        return sum(self.parts.values())

    @property
    def verdict(self) -> str:
        """Whether it is within the limit."""
        if self.limit is None or self.bound <= self.limit:
            return "fits"
        return "may fit" if self.total <= self.limit else "too large"


def estimate_plots(estimate: Estimate) -> list[Plot]:
    """A plot of device memory and one of host memory."""
    rows, limits = estimate.rows, estimate.limits
    device = [Column(r.batch_size, r.device_bytes_by_part, r.device_upper_bytes, limits.device_bytes) for r in rows]
    host = [Column(r.batch_size, r.host_bytes_by_part, r.host_upper_bytes, limits.host_bytes) for r in rows]
    return [_plot("device", device), _plot("host", host)]


def _plot(which: str, columns: Sequence[Column]) -> Plot:
    scale = MemoryScale.of(max(max(column.total, column.bound) for column in columns), columns[0].limit)
    ends = [-0.6, len(columns) - 0.4]
    traces = [*_part_bars(columns, scale), *_bound_marks(columns, scale), scale.limit_line(ends)]
    ticks = [f"{column.batch_size:,}<br>{format_bytes(column.total)}<br>{column.verdict}" for column in columns]
    labels = {"tickvals": list(range(len(columns))), "ticktext": ticks, "tickangle": 0}
    x_axis = style.axis("batch size, expected total", range=ends, showgrid=False, **labels)
    drawn = style.figure(traces, barmode="stack", bargap=0.35, xaxis=x_axis, yaxis=scale.axis(f"{which} memory"))
    caption = f"{scale.sentence()} Memory stays below the bound with 99 % probability."
    return Plot(f"memory-{which}", f"{which.capitalize()} memory", caption, drawn)


def _part_bars(columns: Sequence[Column], scale: MemoryScale) -> list[dict[str, Any]]:
    parts = [part for part in columns[0].parts if any(column.parts[part] for column in columns)]
    positions = range(len(columns))
    traces = []
    for part, look in zip(parts, BAR_LOOKS, strict=False):
        name, sizes = PART_NAMES[part], [column.parts[part] for column in columns]
        hover = [style.hover(f"{name}: {format_bytes(size)}", []) for size in sizes]
        traces.append(style.bars(name, positions, [size / scale.unit_bytes for size in sizes], hover, look))
    return traces


def _bound_marks(columns: Sequence[Column], scale: MemoryScale) -> list[dict[str, Any]]:
    traces = []
    for name, is_within, color in (("upper bound", True, BLACK), ("upper bound, above the limit", False, VERMILION)):
        members = {i: column for i, column in enumerate(columns) if (column.verdict == "fits") is is_within}
        hover = [style.hover(f"at most {format_bytes(column.bound)}", []) for column in members.values()]
        heights = [column.bound / scale.unit_bytes for column in members.values()]
        traces.append(style.marks(name, list(members), heights, hover, "line-ew", color))
    return traces
