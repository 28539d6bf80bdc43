"""An estimate as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.result import Estimate
from autofit.records.units import format_bytes
from autofit.report.console.estimate import _NAMES, _input

PLOT_FORMATS = (".png", ".svg")
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")  # Paul Tol's "bright"


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
