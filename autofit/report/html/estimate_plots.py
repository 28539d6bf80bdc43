"""Plots of an estimate: device and host memory by batch size, stacked by part, with bounds and limits."""

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
class Stack:
    """The device or host memory of one batch size, in bytes."""

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
        """Whether the memory is within the limit."""
        if self.limit is None or self.bound <= self.limit:
            return "fits"
        return "may fit" if self.total <= self.limit else "too large"


def estimate_plots(estimate: Estimate) -> list[Plot]:
    """Answer "which batch sizes fit, and what takes the memory?" with a plot of each memory."""
    rows, limits = estimate.rows, estimate.limits
    device = [Stack(r.batch_size, r.device_bytes_by_part, r.device_upper_bytes, limits.device_bytes) for r in rows]
    host = [Stack(r.batch_size, r.host_bytes_by_part, r.host_upper_bytes, limits.host_bytes) for r in rows]
    return [_plot("device", device), _plot("host", host)]


def _plot(which: str, stacks: Sequence[Stack]) -> Plot:
    scale = MemoryScale.of(max(max(stack.total, stack.bound) for stack in stacks), stacks[0].limit)
    ends = [-0.6, len(stacks) - 0.4]
    traces = [*_part_bars(stacks, scale), *_bound_marks(stacks, scale), scale.limit_line(ends)]
    ticks = [f"{stack.batch_size:,}<br>{format_bytes(stack.total)}<br>{stack.verdict}" for stack in stacks]
    labels = {"tickvals": list(range(len(stacks))), "ticktext": ticks, "tickangle": 0}
    x_axis = style.axis("batch size, expected total", range=ends, showgrid=False, **labels)
    drawn = style.figure(traces, barmode="stack", bargap=0.35, xaxis=x_axis, yaxis=scale.axis(f"{which} memory"))
    caption = f"{scale.sentence()} Memory stays below the bound with 99 % probability."
    return Plot(f"memory-{which}", f"{which.capitalize()} memory", caption, drawn)


def _part_bars(stacks: Sequence[Stack], scale: MemoryScale) -> list[dict[str, Any]]:
    parts = [part for part in stacks[0].parts if any(stack.parts[part] for stack in stacks)]
    positions = range(len(stacks))
    traces = []
    for part, look in zip(parts, BAR_LOOKS, strict=False):
        name, sizes = PART_NAMES[part], [stack.parts[part] for stack in stacks]
        hover = [style.hover(f"{name}: {format_bytes(size)}", []) for size in sizes]
        traces.append(style.bars(name, positions, [size / scale.unit_bytes for size in sizes], hover, look))
    return traces


def _bound_marks(stacks: Sequence[Stack], scale: MemoryScale) -> list[dict[str, Any]]:
    traces = []
    for name, is_within, color in (("upper bound", True, BLACK), ("upper bound, above the limit", False, VERMILION)):
        members = {i: stack for i, stack in enumerate(stacks) if (stack.verdict == "fits") is is_within}
        hover = [style.hover(f"at most {format_bytes(stack.bound)}", []) for stack in members.values()]
        heights = [stack.bound / scale.unit_bytes for stack in members.values()]
        traces.append(style.marks(name, list(members), heights, hover, "line-ew", color))
    return traces
