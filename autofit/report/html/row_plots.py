"""Plots with a row for each bar: the processes of a tune over time, and the rates of the cells of a sweep."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofit.records.result import FailedTune, TuneLog, TuneRecord
from autofit.records.states import Stage
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import Trial
from autofit.records.units import format_rate, format_seconds
from autofit.report.html import style
from autofit.report.html.style import BAR_LOOKS, BLACK, BLUE, GREEN, ORANGE, PURPLE, SOFT, VERMILION, Plot
from autofit.report.wording import cell_label, short_names

_LONGEST_GAP_SECONDS = 30.0  # between two trials of one run; a longer gap means that the tune was interrupted and resumed
_DESCRIBING = "describing"
_STAGES = {
    _DESCRIBING: ("describing model and data", (SOFT, "x")),
    Stage.SEARCH: ("search", (BLUE, "")),
    Stage.FINALIST: ("finalist, run again", (ORANGE, "/")),
    Stage.CHOSEN: ("chosen, confirming", (GREEN, "\\")),
    Stage.BASELINE: ("baseline", (PURPLE, ".")),
}
_PROCESS_PIXELS = 26
_CELL_PIXELS = 30
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_NUMBER_CHARACTERS = 6  # characters of a shortened label that are its ellipsis and its number
_CROSS_ROOM = 0.03  # free space, relative to the longest bar, so that a cross at 0 does not touch the labels


@dataclass(frozen=True)
class ProcessBar:
    """The bar of one process of a tune; `start` is its position on the axis, in seconds."""

    label: str
    stage: str
    start: float
    seconds: float
    trial: Trial | None = None


def lay_out(log: TuneLog) -> tuple[list[ProcessBar], bool]:
    """Place the bars on an axis from 0; also return whether interruptions of the tune were cut out."""
    begun: list[tuple[float, ProcessBar]] = []
    if log.describing_seconds:
        begun.append((log.started_at or math.inf, ProcessBar(_DESCRIBING, _DESCRIBING, 0.0, log.describing_seconds)))
    counts: Counter[str] = Counter()
    for trial in sorted((*log.searched, *log.runs), key=_started_at):
        counts[trial.stage] += 1
        label = f"{'trial' if trial.stage is Stage.SEARCH else trial.stage} {counts[trial.stage]}"
        begun.append((_started_at(trial), ProcessBar(label, trial.stage, 0.0, trial.measurement.seconds, trial)))
    begun.sort(key=lambda pair: pair[0])
    bars: list[ProcessBar] = []
    cursor, last_end, cut = 0.0, math.inf, False
    for started_at, bar in begun:
        pause = max(0.0, started_at - last_end) if math.isfinite(started_at) else 0.0
        cut |= pause > _LONGEST_GAP_SECONDS
        start = cursor + (pause if pause <= _LONGEST_GAP_SECONDS else 0.0)
        bars.append(replace(bar, start=start))
        cursor = start + bar.seconds
        last_end = (started_at if math.isfinite(started_at) else last_end) + bar.seconds
    return bars, cut


def timeline(log: TuneLog) -> Plot | None:
    """Plot a bar for each trial from its start to its end; return None without trials.

    The plot answers "where did the time go?".
    """
    bars, cut = lay_out(log)
    if not any(bar.trial for bar in bars):
        return None
    traces = []
    for stage in dict.fromkeys(bar.stage for bar in bars):
        members = [bar for bar in bars if bar.stage == stage]
        name, look = _STAGES[stage]
        seconds, labels = [bar.seconds for bar in members], [bar.label for bar in members]
        starts, hover = [bar.start for bar in members], [_hover(bar, name) for bar in members]
        traces.append(style.bars(name, seconds, labels, hover, look, orientation="h", base=starts))
    caption = f"Each bar is one process. The tune took {format_seconds(log.seconds)}."
    if cut:
        caption += " It was interrupted and resumed; the pauses between its runs are cut out."
    labels = [bar.label for bar in bars]
    layout = {"xaxis": style.axis("seconds"), "yaxis": style.row_axis(labels), "barmode": "overlay", "bargap": 0.25}
    drawn = style.figure(traces, style.FRAME_PIXELS + _PROCESS_PIXELS * len(labels), **layout)
    return Plot("timeline", "Timeline", caption, drawn)


def _started_at(trial: Trial) -> float:
    return trial.measurement.started_at or math.inf


def _hover(bar: ProcessBar, stage: str) -> str:
    if bar.trial is None:
        return style.hover(stage, [format_seconds(bar.seconds)])
    return style.trial_hover(bar.trial, stage)


@dataclass(frozen=True)
class CellBar:
    """The bar of a cell's confirmed rate, in the row of its label."""

    label: str
    values: Mapping[str, Any]
    result: TuneRecord


def rates(record: SweepRecord) -> Plot | None:
    """Plot the rate of each cell as a bar, in samples per second; return None if no cell has a result.

    The plot answers "which cell is fastest, and by how much?". Cells with the same value of the first axis have the same
    colour and pattern.
    """
    labelled = [(_row_label(cell, i), cell) for i, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"]
    bars = [CellBar(label, cell.values, cell.tune) for label, cell in labelled if isinstance(cell.tune, TuneRecord)]
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
    caption = "Each bar is the confirmed rate of a cell's fastest configuration."
    caption += " A cross marks a cell without a result." if failed else ""
    height = style.FRAME_PIXELS + _CELL_PIXELS * len(labelled)
    drawn = style.figure(traces, height, barmode="overlay", bargap=0.3, xaxis=x_axis, yaxis=y_axis)
    return Plot("cell-rates", "Throughput by cell", caption, drawn)


def grouped(bars: Sequence[CellBar]) -> dict[str, list[CellBar]]:
    """Group bars by their value of the first axis; return one group if each bar is a group, or looks are too few."""
    axis = next(iter(bars[0].values), None)
    groups: dict[str, list[CellBar]] = {}
    for bar in bars:
        groups.setdefault(f"{short_names((axis,))[axis]} {bar.values.get(axis)}" if axis else "", []).append(bar)
    return groups if 1 < len(groups) < len(bars) and len(groups) <= len(BAR_LOOKS) else {"": list(bars)}


def _group_bars(group: str, bars: Sequence[CellBar], look: tuple[str, str]) -> dict[str, Any]:
    rates, spreads, hover = [], [], []
    for bar in bars:
        rate, spread = bar.result.samples_per_second, bar.result.spread
        rates.append(rate)
        spreads.append(rate * (spread or 0))
        interval = "" if spread is None else f" ±{spread:.0%}"
        lines = [f"{format_rate(rate)} samples/s{interval}", f"bottleneck: {bar.result.bottleneck}"]
        hover.append(style.hover(cell_label(bar.values), [str(bar.result.config), *lines]))
    error_bars = {"type": "data", "array": spreads, "color": BLACK, "thickness": 1.2}
    labels = [bar.label for bar in bars]
    return style.bars(html.escape(group), rates, labels, hover, look, orientation="h", error_x=error_bars)


def _problem(cell: Cell) -> str:
    """Return why a cell has no result."""
    return (cell.tune.problem if isinstance(cell.tune, FailedTune) else cell.problem) or cell.note


def _row_label(cell: Cell, number: int) -> str:
    """Return a cell's label for the axis of a plot, without markup, and shortened if it is long."""
    text = cell_label(cell.values)
    cut = f"{text[: _LABEL_CHARACTERS - _NUMBER_CHARACTERS]}… ({number})"
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else cut)
