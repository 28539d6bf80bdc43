"""What a sweep's page shows of its cells: a row for each, and their rates side by side."""

from __future__ import annotations

import html
from collections.abc import Sequence

from autofit.records.result import Cell, FailedTune, SweepRecord, TuneRecord
from autofit.records.units import format_bytes, format_rate
from autofit.report import wording
from autofit.report.html import style
from autofit.report.html.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Plot
from autofit.report.html.trial_table import NONE, Field

_LOOKS = ((BLUE, ""), (ORANGE, "/"), (GREEN, "\\"), (PURPLE, "."), (SKY, "-"), (VERMILION, "+"))
_CELL_PIXELS = 30
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_CROSS_ROOM = 0.03  # of the longest bar: a cross at 0 stays clear of the labels


def rates(record: SweepRecord) -> Plot:
    """Samples per second of each cell; cells that share the value of the first axis share a colour and a pattern."""
    title, answered = "Throughput by cell", [c for c in record.cells if isinstance(c.found, TuneRecord)]
    if not answered:
        return Plot("cell-rates", title, "No cell came to an answer: there is nothing to compare.")
    shown = [(number, cell) for number, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"]
    labels = {id(cell): _row_label(cell, number) for number, cell in shown}
    traces = []
    axis = next(iter(answered[0].values), None)
    named = wording.short_names((axis,))[axis] if axis else ""
    groups = list(dict.fromkeys(str(c.values.get(axis)) if axis else "" for c in answered))
    grouped = axis is not None and 1 < len(groups) < len(answered) and len(groups) <= len(_LOOKS)
    for position, group in enumerate(groups if grouped else [""]):
        some = [c for c in answered if not grouped or str(c.values.get(axis or "")) == group]
        color, pattern = _LOOKS[position]
        found = [c.found for c in some if isinstance(c.found, TuneRecord)]
        traces.append({
            "type": "bar", "orientation": "h", "name": html.escape(f"{named} {group}"), "showlegend": grouped,
            "y": [labels[id(c)] for c in some], "x": [r.samples_per_second for r in found],
            "hoverinfo": "text", "hovertext": [_told(c, r) for c, r in zip(some, found, strict=True)],
            "error_x": {"type": "data", "array": [r.samples_per_second * (r.spread or 0) for r in found], "thickness": 1},
            "marker": {"color": color, "pattern": style.pattern(pattern)},
        })  # fmt: skip
    failed = [c for c in record.cells if c.outcome in ("failed", "does not fit")]
    if failed:
        told = [style.hover(wording.cell_label(c.values), [c.outcome, why(c)]) for c in failed]
        cross = style.marks(
            "no answer", [0.0] * len(failed), [labels[id(c)] for c in failed], told, symbol="x", color=VERMILION
        )
        cross["marker"] |= {"size": 12, "line": {"width": 1, "color": BLACK}}
        traces.append(cross | {"cliponaxis": False})
    found = [c.found for c in answered if isinstance(c.found, TuneRecord)]
    highest = max(r.samples_per_second * (1 + (r.spread or 0)) for r in found)
    axes = {
        "xaxis": style.axis("samples/s", range=[-_CROSS_ROOM * highest, 1.05 * highest], tickformat=",~r"),
        "yaxis": style.row_axis(list(labels.values())),
    }
    caption = "The confirmed rate of each cell's best configuration."
    caption += " A cross is a cell without an answer; why is in its text and below." if failed else ""
    height = style.height_of(0) + _CELL_PIXELS * len(labels)
    return Plot("cell-rates", title, caption, style.figure(traces, height=height, barmode="overlay", bargap=0.3, **axes))


def rows(record: SweepRecord) -> list[dict[str, Field]]:
    """The cells as rows of a table."""
    found = [_found(cell) for cell in record.cells]
    names = {axis: axis if name in found[0] else name for axis, name in wording.short_names(record.axes).items()}
    return [
        {**{name: _value(cell.values.get(axis)) for axis, name in names.items()}, **row}
        for cell, row in zip(record.cells, found, strict=True)
    ]


def _row_label(cell: Cell, number: int) -> str:
    """A cell's label as an axis of a plot takes it: without markup, and cut where it is long."""
    text = wording.cell_label(cell.values)
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else f"{text[: _LABEL_CHARACTERS - 6]}… ({number})")


def why(cell: Cell) -> str:
    """Why a cell has no answer; empty where it has one."""
    return cell.found.problem if isinstance(cell.found, FailedTune) else cell.problem


def _found(cell: Cell) -> dict[str, Field]:
    found = cell.found
    if not isinstance(found, TuneRecord):
        empty: Sequence[str] = ("samples/s", "gain", "device", "host", "limited by")
        seconds = Field(NONE) if found is None else Field(f"{found.seconds:.0f}", found.seconds)
        return {
            "outcome": Field(cell.outcome),
            "config": Field(NONE),
            **{n: Field(NONE) for n in empty},
            "seconds": seconds,
        }
    ratio = found.speedup.ratio
    return {
        "outcome": Field("ok"),
        "config": Field(str(found.config), found.config.batch_size),
        "samples/s": Field(format_rate(found.samples_per_second), found.samples_per_second),
        "gain": Field(NONE if ratio is None else f"{ratio:.2f}×", ratio),
        "device": _bytes(found.device_peak_bytes),
        "host": _bytes(found.host_peak_bytes),
        "limited by": Field(found.bottleneck),
        "seconds": Field(f"{found.seconds:.0f}", found.seconds),
    }


def _bytes(size: int | None) -> Field:
    return Field(NONE if size is None else format_bytes(size), size)


def _value(value: object) -> Field:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Field(NONE if value is None else str(value), float(value) if number else None)  # type: ignore[arg-type]


def _told(cell: Cell, found: TuneRecord) -> str:
    rate = f"{format_rate(found.samples_per_second)} samples/s{style.spread_in_words(found.spread)}"
    return style.hover(wording.cell_label(cell.values), [str(found.config), rate, f"limited by: {found.bottleneck}"])
