"""The plot of a sweep: the rates of its cells side by side."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.units import format_rate
from autofit.report.html import style
from autofit.report.html.style import BAR_LOOKS, BLACK, VERMILION, Plot
from autofit.report.wording import cell_label, short_names

_CELL_PIXELS = 30
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_NUMBER_CHARACTERS = 6  # of them, for the ellipsis and the number of a shortened label
_CROSS_ROOM = 0.03  # of the longest bar, so that a cross at 0 does not touch the labels


@dataclass(frozen=True)
class Bar:
    """The confirmed rate of a cell, in the row of its label."""

    label: str
    values: Mapping[str, Any]
    result: TuneRecord


def rates(record: SweepRecord) -> Plot | None:
    """Answer "which cell is fastest, and by how much?": a bar of samples per second for each cell.

    Cells that share the value of the first axis share a colour and a pattern. None if no cell has a result.
    """
    labelled = [(_row_label(cell, i), cell) for i, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"]
    bars = [Bar(label, cell.values, cell.tune) for label, cell in labelled if isinstance(cell.tune, TuneRecord)]
    failed = [(label, cell) for label, cell in labelled if not isinstance(cell.tune, TuneRecord)]
    if not bars:
        return None
    groups = grouped(bars)
    traces = [
        _group_bars(group, members, look) | {"showlegend": len(groups) > 1}
        for (group, members), look in zip(groups.items(), BAR_LOOKS, strict=False)
    ]
    hover = [style.hover(cell_label(cell.values), [cell.outcome, _problem(cell)]) for _, cell in failed]
    traces.append(style.marks("no result", [0.0] * len(failed), [label for label, _ in failed], hover, "x", VERMILION))
    highest = max(bar.result.samples_per_second * (1 + (bar.result.spread or 0)) for bar in bars)
    x_axis = style.axis("samples/s", range=[-_CROSS_ROOM * highest, 1.05 * highest], tickformat=",~r")
    y_axis = style.row_axis([label for label, _ in labelled])
    caption = "The confirmed rate of the fastest configuration of each cell."
    caption += " A cross marks a cell without a result." if failed else ""
    height = style.FRAME_PIXELS + _CELL_PIXELS * len(labelled)
    drawn = style.figure(traces, height, barmode="overlay", bargap=0.3, xaxis=x_axis, yaxis=y_axis)
    return Plot("cell-rates", "Throughput by cell", caption, drawn)


def grouped(bars: Sequence[Bar]) -> dict[str, list[Bar]]:
    """Bars by their value of the first axis; one group if there would be one per bar, or more than there are looks."""
    axis = next(iter(bars[0].values), None)
    groups: dict[str, list[Bar]] = {}
    for bar in bars:
        groups.setdefault(f"{short_names((axis,))[axis]} {bar.values.get(axis)}" if axis else "", []).append(bar)
    return groups if 1 < len(groups) < len(bars) and len(groups) <= len(BAR_LOOKS) else {"": list(bars)}


def _group_bars(group: str, bars: Sequence[Bar], look: tuple[str, str]) -> dict[str, Any]:
    rates, spreads, hover = [], [], []
    for bar in bars:
        rate, spread = bar.result.samples_per_second, bar.result.spread
        rates.append(rate)
        spreads.append(rate * (spread or 0))
        lines = [f"{format_rate(rate)} samples/s{style.spread_in_words(spread)}", f"bottleneck: {bar.result.bottleneck}"]
        hover.append(style.hover(cell_label(bar.values), [str(bar.result.config), *lines]))
    trace = style.bars(html.escape(group), rates, [bar.label for bar in bars], hover, look)
    return trace | {"orientation": "h", "error_x": {"type": "data", "array": spreads, "color": BLACK, "thickness": 1.2}}


def _problem(cell: Cell) -> str:
    """Why a cell has no result."""
    return (cell.tune.problem if isinstance(cell.tune, FailedTune) else cell.problem) or cell.note


def _row_label(cell: Cell, number: int) -> str:
    """A cell's label for an axis of a plot, without markup and shortened if it is long."""
    text = cell_label(cell.values)
    cut = f"{text[: _LABEL_CHARACTERS - _NUMBER_CHARACTERS]}… ({number})"
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else cut)
