"""The plot of a sweep: the rate of each cell as a bar, with a row for each cell."""

from __future__ import annotations

import html

from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.units import format_rate
from autofit.report.html import style
from autofit.report.html.style import BAR_LOOKS, BLACK, VERMILION, Plot
from autofit.report.wording import cell_label

_FRAME_PIXELS = 130  # total height of the legend, axis and margins
_CELL_PIXELS = 30
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_NUMBER_CHARACTERS = 6  # characters of a shortened label that are its ellipsis and its number
_CROSS_ROOM = 0.03  # free space, relative to the longest bar, so that a cross at 0 does not touch the labels


def rates(record: SweepRecord) -> Plot | None:
    """Plot the rate of each cell as a bar, in samples per second; return None if no cell has a result.

    The plot answers "which cell is fastest, and by how much?".
    """
    labelled = [(_row_label(cell, i), cell) for i, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"]
    rated = [(label, cell, cell.tune) for label, cell in labelled if isinstance(cell.tune, TuneRecord)]
    failed = [(label, cell) for label, cell in labelled if not isinstance(cell.tune, TuneRecord)]
    if not rated:
        return None
    heights = [result.samples_per_second for _, _, result in rated]
    spreads = [result.samples_per_second * (result.spread or 0.0) for _, _, result in rated]
    error_bars = {"type": "data", "array": spreads, "color": BLACK, "thickness": 1.2}
    labels, hover = [label for label, _, _ in rated], [_hover(cell, result) for _, cell, result in rated]
    crosses = [style.hover(cell_label(cell.values), [cell.outcome, _problem(cell)]) for _, cell in failed]
    traces = [
        style.bars("rate", heights, labels, hover, BAR_LOOKS[0], orientation="h", error_x=error_bars, showlegend=False),
        style.marks("no result", [0.0] * len(failed), [label for label, _ in failed], crosses, "x", VERMILION),
    ]
    highest = max(rate + spread for rate, spread in zip(heights, spreads, strict=True))
    x_axis = style.axis("samples/s", range=[-_CROSS_ROOM * highest, 1.05 * highest], tickformat=",~r")
    y_axis = style.row_axis([label for label, _ in labelled])
    caption = "Each bar is the confirmed rate of a cell's fastest configuration."
    caption += " A cross marks a cell without a result." if failed else ""
    height = _FRAME_PIXELS + _CELL_PIXELS * len(labelled)
    drawn = style.figure(traces, height, barmode="overlay", bargap=0.3, xaxis=x_axis, yaxis=y_axis)
    return Plot("cell-rates", "Throughput by cell", caption, drawn)


def _hover(cell: Cell, result: TuneRecord) -> str:
    interval = "" if result.spread is None else f" ±{result.spread:.0%}"
    rate = f"{format_rate(result.samples_per_second)} samples/s{interval}"
    return style.hover(cell_label(cell.values), [str(result.config), rate, f"bottleneck: {result.bottleneck}"])


def _problem(cell: Cell) -> str:
    """Return why a cell has no result."""
    return (cell.tune.problem if isinstance(cell.tune, FailedTune) else cell.problem) or cell.note


def _row_label(cell: Cell, number: int) -> str:
    """Return a cell's label for the axis of a plot, without markup, and shortened if it is long."""
    text = cell_label(cell.values)
    cut = f"{text[: _LABEL_CHARACTERS - _NUMBER_CHARACTERS]}… ({number})"
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else cut)
