"""The cells of a sweep: a row of the table for each, and their rates side by side."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.units import format_bytes, format_rate
from autofit.report.choice import gain_figure
from autofit.report.html import style
from autofit.report.html.style import BAR_LOOKS, BLACK, VERMILION, Plot
from autofit.report.html.trial_table import NONE, Field
from autofit.report.wording import cell_label, short_names

_CELL_PIXELS = 30
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_NUMBER_CHARACTERS = 6  # of them, for the ellipsis and the number of a cut label
_CROSS_ROOM = 0.03  # of the longest bar: a cross at 0 stays clear of the labels


@dataclass(frozen=True)
class Bar:
    """The confirmed rate of a cell, in the row of its label."""

    label: str
    values: Mapping[str, Any]
    result: TuneRecord


def rates(record: SweepRecord) -> Plot:
    """Samples per second of each cell; cells that share the value of the first axis share a colour and a pattern."""
    name, title = "cell-rates", "Throughput by cell"
    labelled = [(_row_label(cell, i), cell) for i, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"]
    bars = [Bar(label, cell.values, cell.tune) for label, cell in labelled if isinstance(cell.tune, TuneRecord)]
    failed = [(label, cell) for label, cell in labelled if not isinstance(cell.tune, TuneRecord)]
    if not bars:
        return Plot(name, title, "No cell has a result, so there is nothing to compare.")
    groups = grouped(bars)
    traces = [
        _group_bars(group, members, look) | {"showlegend": len(groups) > 1}
        for (group, members), look in zip(groups.items(), BAR_LOOKS, strict=False)
    ]
    hover = [style.hover(cell_label(cell.values), [cell.outcome, why(cell)]) for _, cell in failed]
    traces.append(style.marks("no result", [0.0] * len(failed), [label for label, _ in failed], hover, "x", VERMILION))
    highest = max(bar.result.samples_per_second * (1 + (bar.result.spread or 0)) for bar in bars)
    x_axis = style.axis("samples/s", range=[-_CROSS_ROOM * highest, 1.05 * highest], tickformat=",~r")
    y_axis = style.row_axis([label for label, _ in labelled])
    caption = "The confirmed rate of each cell's best configuration."
    caption += " A cross is a cell without a result; the reason is in its text and below." if failed else ""
    height = style.height_of(0) + _CELL_PIXELS * len(labelled)
    drawn = style.figure(traces, height, barmode="overlay", bargap=0.3, xaxis=x_axis, yaxis=y_axis)
    return Plot(name, title, caption, drawn)


def grouped(bars: Sequence[Bar]) -> dict[str, list[Bar]]:
    """Bars by their value of the first axis; all in one group where that would be one each, or too many."""
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
        lines = [f"{format_rate(rate)} samples/s{style.spread_in_words(spread)}", f"limited by: {bar.result.bottleneck}"]
        hover.append(style.hover(cell_label(bar.values), [str(bar.result.config), *lines]))
    trace = style.bars(html.escape(group), rates, [bar.label for bar in bars], hover, look)
    return trace | {"orientation": "h", "error_x": {"type": "data", "array": spreads, "color": BLACK, "thickness": 1.2}}


def rows(record: SweepRecord) -> list[dict[str, Field]]:
    """The cells as rows of a table."""
    rates = ("samples/s", "per device", "scaling") if record.compares_devices else ("samples/s",)
    efficiencies = record.scaling_efficiencies()
    results = [
        _result_fields(cell, rates, efficiency, with_host=bool(record.hosts))
        for cell, efficiency in zip(record.cells, efficiencies, strict=True)
    ]
    names = {axis: axis if name in results[0] else name for axis, name in short_names(record.axes).items()}
    return [
        {**{name: _value(cell.values.get(axis)) for axis, name in names.items()}, **fields}
        for cell, fields in zip(record.cells, results, strict=True)
    ]


def why(cell: Cell) -> str:
    """Why a cell has no result, or what happened on the way to it; empty where there is nothing to say."""
    return (cell.tune.problem if isinstance(cell.tune, FailedTune) else cell.problem) or cell.note


def _row_label(cell: Cell, number: int) -> str:
    """A cell's label for an axis of a plot: without markup, and cut where it is long."""
    text = cell_label(cell.values)
    cut = f"{text[: _LABEL_CHARACTERS - _NUMBER_CHARACTERS]}… ({number})"
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else cut)


def _result_fields(cell: Cell, rates: Sequence[str], efficiency: float | None, *, with_host: bool) -> dict[str, Field]:
    fields = dict.fromkeys(("config", *rates, "gain", "device", "host", "limited by", "seconds"), Field(NONE))
    result = cell.tune
    if result is not None:
        fields["seconds"] = Field(f"{result.seconds:.0f}", result.seconds)
    if isinstance(result, TuneRecord):
        figure, speedup = gain_figure(result, "×"), result.speedup
        fields |= {
            "config": Field(str(result.config), result.config.batch_size),
            "samples/s": Field(format_rate(result.samples_per_second), result.samples_per_second),
            "gain": Field(figure or NONE, speedup.ratio if speedup.is_shown or speedup.is_loss else None),
            "device": _bytes(result.device_peak_bytes),
            "host": _bytes(result.host_peak_bytes),
            "limited by": Field(result.bottleneck),
        }
    if efficiency is not None and cell.rate_on_each is not None:
        fields["per device"] = Field(format_rate(cell.rate_on_each), cell.rate_on_each)
        fields["scaling"] = Field(f"{efficiency:.0%}", efficiency)
    return {"outcome": Field(cell.outcome), **({"tuned on": Field(cell.host)} if with_host else {}), **fields}


def _bytes(size: int | None) -> Field:
    return Field(NONE if size is None else format_bytes(size), size)


def _value(value: object) -> Field:
    order = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Field(NONE if value is None else str(value), order)
