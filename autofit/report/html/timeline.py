"""The timeline of a tune."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from autofit.records.result import TuneLog
from autofit.records.states import Stage
from autofit.records.trial import Trial
from autofit.records.units import format_seconds
from autofit.report.html import style
from autofit.report.html.style import BLUE, GREEN, ORANGE, PURPLE, SOFT, Plot

_LONGEST_GAP_SECONDS = 30.0  # between two trials of one run; a longer gap means that the tune was interrupted and resumed
_DESCRIBING = "describing"
_STAGES = {
    _DESCRIBING: ("describing model and data", (SOFT, "x")),
    Stage.SEARCH: ("search", (BLUE, "")),
    Stage.FINALIST: ("finalist, run again", (ORANGE, "/")),
    Stage.CHOSEN: ("chosen, confirming", (GREEN, "\\")),
    Stage.BASELINE: ("baseline", (PURPLE, ".")),
}
_ROW_PIXELS = 26


@dataclass(frozen=True)
class Bar:
    """A process of the tune; `start` is in seconds on the axis."""

    label: str
    stage: str
    start: float
    seconds: float
    trial: Trial | None = None


def lay_out(log: TuneLog) -> tuple[list[Bar], bool]:
    """The bars on one axis from 0, and whether pauses between interrupted runs of the tune were cut out."""
    begun: list[tuple[float, Bar]] = []
    if log.describing_seconds:
        begun.append((log.started_at or math.inf, Bar(_DESCRIBING, _DESCRIBING, 0.0, log.describing_seconds)))
    counts: Counter[str] = Counter()
    for trial in sorted((*log.searched, *log.runs), key=_started_at):
        counts[trial.stage] += 1
        label = f"{'trial' if trial.stage is Stage.SEARCH else trial.stage} {counts[trial.stage]}"
        begun.append((_started_at(trial), Bar(label, trial.stage, 0.0, trial.measurement.seconds, trial)))
    begun.sort(key=lambda pair: pair[0])
    bars: list[Bar] = []
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
    """Answer "where did the time go?" with a bar for each trial from its start to its end; None without trials."""
    bars, cut = lay_out(log)
    if not any(bar.trial for bar in bars):
        return None
    traces = []
    for stage in dict.fromkeys(bar.stage for bar in bars):
        members = [bar for bar in bars if bar.stage == stage]
        name, look = _STAGES[stage]
        seconds, labels = [bar.seconds for bar in members], [bar.label for bar in members]
        trace = style.bars(name, seconds, labels, [_hover(bar, name) for bar in members], look)
        traces.append(trace | {"orientation": "h", "base": [bar.start for bar in members]})
    caption = f"Each bar is one process. The tune took {format_seconds(log.seconds)}."
    if cut:
        caption += " It was interrupted and resumed; the pauses between its runs are cut out."
    labels = [bar.label for bar in bars]
    layout = {"xaxis": style.axis("seconds"), "yaxis": style.row_axis(labels), "barmode": "overlay", "bargap": 0.25}
    drawn = style.figure(traces, style.FRAME_PIXELS + _ROW_PIXELS * len(labels), **layout)
    return Plot("timeline", "Timeline", caption, drawn)


def _started_at(trial: Trial) -> float:
    return trial.measurement.started_at or math.inf


def _hover(bar: Bar, stage: str) -> str:
    if bar.trial is None:
        return style.hover(stage, [format_seconds(bar.seconds)])
    return style.trial_hover(bar.trial, stage)
