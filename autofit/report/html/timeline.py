"""Plots of the tune's time: when the trials ran, and how long each phase took."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

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
_MIN_SHARE = 0.005  # of all the time: shorter phases are added up
_MIN_REST_SECONDS = 0.05  # less is shown as 0.0 s
_ROW_PIXELS = 26
_TEXT_ROOM, _TEXT_ROOM_NARROW = 1.35, 2.2  # width relative to the longest bar: room for the text beside it, also on a phone


@dataclass(frozen=True)
class Bar:
    """A process of the tune; it starts at `start` seconds on the axis."""

    label: str
    stage: str
    start: float
    seconds: float
    trial: Trial | None = None


def by_start(log: TuneLog) -> list[Trial]:
    """The trials of the search and the runs after it, in the order in which they ran."""
    return sorted((*log.searched, *log.runs), key=lambda trial: trial.measurement.started_at or math.inf)


def lay_out(log: TuneLog) -> tuple[list[Bar], bool]:
    """The bars on one axis from 0, and whether pauses between interrupted runs of the tune were cut out."""
    found: list[tuple[float | None, Bar]] = []
    if log.describing_seconds:
        found.append((log.started_at, Bar(_DESCRIBING, _DESCRIBING, 0.0, log.describing_seconds)))
    counts: Counter[str] = Counter()
    for trial in by_start(log):
        counts[trial.stage] += 1
        label = f"{'trial' if trial.stage is Stage.SEARCH else trial.stage} {counts[trial.stage]}"
        found.append((trial.measurement.started_at, Bar(label, trial.stage, 0.0, trial.measurement.seconds, trial)))
    found.sort(key=lambda pair: pair[0] or math.inf)
    bars: list[Bar] = []
    cursor, last_end, cut = 0.0, None, False
    for begun, bar in found:
        pause = 0.0 if begun is None or last_end is None else begun - last_end
        if pause > _LONGEST_GAP_SECONDS:
            pause, cut = 0.0, True
        start = cursor + max(0.0, pause)
        bars.append(Bar(bar.label, bar.stage, start, bar.seconds, bar.trial))
        cursor, last_end = start + bar.seconds, (begun or last_end or 0.0) + bar.seconds
    return bars, cut


def timeline(log: TuneLog) -> Plot:
    """A bar for each trial from its start to its end."""
    bars, cut = lay_out(log)
    if not any(bar.trial for bar in bars):
        return Plot("timeline", "Timeline", "No trial was run.")
    traces = []
    for stage in dict.fromkeys(bar.stage for bar in bars):
        members = [bar for bar in bars if bar.stage == stage]
        name, look = _STAGES[stage]
        seconds, labels = [bar.seconds for bar in members], [bar.label for bar in members]
        trace = style.bars(name, seconds, labels, [_hover(bar, name) for bar in members], look)
        traces.append(trace | {"orientation": "h", "base": [bar.start for bar in members]})
    caption = "Each bar is one process, from its start to its end."
    if cut:
        caption += " The tune was interrupted and resumed; the pauses between its runs are cut out."
    return Plot("timeline", "Timeline", caption, _rows(traces, [bar.label for bar in bars], style.axis("seconds")))


def _rows(traces: list[dict[str, Any]], labels: list[str], x_axis: dict[str, Any], **layout: Any) -> Any:
    height = style.height_of(0) + _ROW_PIXELS * len(labels)
    y_axis = style.row_axis(labels)
    return style.figure(traces, height, xaxis=x_axis, yaxis=y_axis, barmode="overlay", bargap=0.25, **layout)


def phases(log: TuneLog) -> dict[str, float]:
    """Seconds in each phase, over all trials, the longest first."""
    spent: defaultdict[str, float] = defaultdict(float)
    for trial in by_start(log):
        m = trial.measurement
        for phase, seconds in m.phase_seconds.items():
            spent[phase.label] += seconds
        spent["ending the process"] += max(0.0, m.seconds - sum(m.phase_seconds.values())) if m.phase_seconds else 0.0
        spent["trials without phases"] += 0.0 if m.phase_seconds else m.seconds
    spent["describing model and data"] += log.describing_seconds
    begun = [t.measurement.started_at for t in by_start(log)]
    if all(at is not None and at >= log.started_at for at in begun):  # else some ran in an earlier run of the tune
        spent["between trials: fitting, choosing"] += max(0.0, log.seconds - sum(spent.values()))
    total = sum(spent.values())
    longest_first = sorted(spent.items(), key=lambda part: -part[1])
    shown = {name: seconds for name, seconds in longest_first if seconds > _MIN_SHARE * total}
    rest = total - sum(shown.values())
    return {**shown, "everything else": rest} if rest > _MIN_REST_SECONDS and shown else shown


def where_it_went(log: TuneLog) -> Plot:
    """A bar for each phase."""
    title, spent = "Where the tuning time went", phases(log)
    if not spent:
        return Plot("phases", title, "No time was spent on trials.")
    total, longest = sum(spent.values()), max(spent, key=spent.__getitem__)
    shares = [f"{format_seconds(s)} · {s / total:.0%}" for s in spent.values()]
    hover = [style.hover(name, [share]) for name, share in zip(spent, shares, strict=True)]
    text = {"text": shares, "textposition": "outside", "cliponaxis": False, "showlegend": False, "orientation": "h"}
    trace = style.bars("", list(spent.values()), list(spent), hover, (BLUE, "")) | text
    caption = f"Most of it on {longest}: {spent[longest] / total:.0%} of {format_seconds(total)}."
    x_axis = style.axis("seconds", range=[0, _TEXT_ROOM * spent[longest]])
    narrow = {"narrow_range": [0, _TEXT_ROOM_NARROW * spent[longest]]}
    return Plot("phases", title, caption, _rows([trace], list(spent), x_axis, meta=narrow))


def _hover(bar: Bar, stage: str) -> str:
    if bar.trial is None:
        return style.hover(stage, [format_seconds(bar.seconds)])
    return style.trial_hover(bar.trial, stage)
