"""When the trials ran, and where the time of the tune went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.result import TuneLog
from autofit.records.trial import Trial
from autofit.records.units import format_seconds
from autofit.report.html import style
from autofit.report.html.style import BLUE, GREEN, ORANGE, PURPLE, SKY, SOFT, Plot

_LONGEST_GAP_SECONDS = 30.0  # between two trials of one run of the tune lie seconds, at the most
_DESCRIBING = "describing"
_STAGES = {
    _DESCRIBING: ("describing model and data", SOFT, "x"),
    "search": ("search", BLUE, ""),
    "finalist": ("finalist, run again", ORANGE, "/"),
    "chosen": ("chosen, confirming", GREEN, "\\"),
    "baseline": ("baseline", PURPLE, "."),
}
_OTHER = ("other", SKY, "-")
_LEAST_SHARE = 0.005  # of all the time: phases below that stand together
_LEAST_REST_SECONDS = 0.05  # less than that is 0.0 s
_PHASE_PIXELS = 26
_TEXT_ROOM, _TEXT_ROOM_NARROW = 1.35, 2.2  # times the longest bar: texts stand right of the bars, on a phone, too


@dataclass(frozen=True)
class Bar:
    """A stretch of the tune: begun at `start` seconds on the axis."""

    label: str
    stage: str
    start: float
    seconds: float
    trial: Trial | None = None


def stages(seen: TuneLog) -> list[tuple[str, Trial]]:
    """Every trial with its stage, in the order in which they ran."""
    found = [*seen.searched, *seen.runs]
    return [(t.stage, t) for t in sorted(found, key=lambda trial: trial.measurement.started_at or float("inf"))]


def lay_out(seen: TuneLog) -> tuple[list[Bar], bool]:
    """The stretches on one axis from 0, and whether pauses (a tune that was ended and went on later) were cut out."""
    found: list[tuple[float | None, Bar]] = []
    if seen.describing_seconds:
        found.append((seen.started_at, Bar(_DESCRIBING, _DESCRIBING, 0.0, seen.describing_seconds)))
    counts: Counter[str] = Counter()
    for stage, trial in stages(seen):
        counts[stage] += 1
        label = f"{'trial' if stage == 'search' else stage} {counts[stage]}"
        found.append((trial.measurement.started_at, Bar(label, stage, 0.0, trial.measurement.seconds, trial)))
    found.sort(key=lambda pair: pair[0] or float("inf"))
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


def timeline(seen: TuneLog) -> Plot:
    """A bar for each trial, from when it began to when it ended."""
    title = "Timeline"
    bars, cut = lay_out(seen)
    if not any(bar.trial for bar in bars):
        return Plot("timeline", title, "No trial was run.")
    traces = []
    for stage in dict.fromkeys(bar.stage for bar in bars):
        some = [bar for bar in bars if bar.stage == stage]
        name, color, pattern = _STAGES.get(stage, _OTHER)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [bar.label for bar in some],
                "x": [bar.seconds for bar in some],
                "base": [bar.start for bar in some],
                "hovertext": [_told(bar, name) for bar in some],
                "hoverinfo": "text",
                "textposition": "none",
                "marker": {"color": color, "line": {"color": "white", "width": 1}, "pattern": style.pattern(pattern)},
            }
        )
    caption = "Each bar is one process, from its start to its end."
    if cut:
        caption += " The tune was ended and went on later: the pauses between are cut out, runs stand end to end."
    return Plot(
        "timeline",
        title,
        caption,
        style.figure(
            traces,
            height=style.height_of(0) + _PHASE_PIXELS * len(bars),
            xaxis=style.axis("seconds", rangemode="tozero"),
            yaxis=style.row_axis([bar.label for bar in bars]),
            barmode="overlay",
            bargap=0.25,
        ),
    )


def phases(seen: TuneLog) -> dict[str, float]:
    """Seconds by what they were spent on, over every trial, the longest first."""
    spent: defaultdict[str, float] = defaultdict(float)
    for _, trial in stages(seen):
        m = trial.measurement
        for phase, seconds in m.phase_seconds.items():
            spent[phase] += seconds
        spent["ending the process"] += max(0.0, m.seconds - sum(m.phase_seconds.values())) if m.phase_seconds else 0.0
        spent["trials, phases not told"] += 0.0 if m.phase_seconds else m.seconds
    spent["describing model and data"] += seen.describing_seconds
    begun = [t.measurement.started_at for _, t in stages(seen)]
    if all(at is not None and at >= seen.started_at for at in begun):  # else some ran in an earlier run of the tune
        spent["between trials: fitting, choosing"] += max(0.0, seen.seconds - sum(spent.values()))
    total = sum(spent.values())
    longest_first = sorted(spent.items(), key=lambda part: -part[1])
    shown = {name: seconds for name, seconds in longest_first if seconds > _LEAST_SHARE * total}
    rest = total - sum(shown.values())
    return {**shown, "all else": rest} if rest > _LEAST_REST_SECONDS and shown else shown


def where_it_went(seen: TuneLog) -> Plot:
    """A bar for each phase."""
    title, spent = "Where the tuning time went", phases(seen)
    if not spent:
        return Plot("phases", title, "No time was spent on trials.")
    total = sum(spent.values())
    shares = [f"{format_seconds(s)} · {s / total:.0%}" for s in spent.values()]
    trace: dict[str, Any] = {
        "type": "bar", "orientation": "h", "y": list(spent), "x": list(spent.values()), "text": shares,
        "textposition": "outside", "cliponaxis": False, "hoverinfo": "text", "showlegend": False,
        "hovertext": [style.hover(name, [share]) for name, share in zip(spent, shares, strict=True)],
        "marker": {"color": BLUE},
    }  # fmt: skip
    longest = max(spent, key=lambda name: spent[name])
    caption = f"Most of it on {longest}: {_share(spent, longest)} of {format_seconds(total)}."
    return Plot(
        "phases",
        title,
        caption,
        style.figure(
            [trace],
            height=style.height_of(0) + _PHASE_PIXELS * len(spent),
            xaxis=style.axis("seconds", range=[0, _TEXT_ROOM * max(spent.values())]),
            meta={"narrow_range": [0, _TEXT_ROOM_NARROW * max(spent.values())]},
            yaxis=style.row_axis(list(spent)),
            bargap=0.25,
        ),
    )


def _share(spent: dict[str, float], name: str) -> str:
    return f"{spent[name] / sum(spent.values()):.0%}"


def _told(bar: Bar, stage: str) -> str:
    if bar.trial is None:
        return style.hover(stage, [format_seconds(bar.seconds)])
    return style.trial_hover(bar.trial, stage)


def ordered(seen: TuneLog) -> Sequence[tuple[str, Trial]]:
    """The trials of the search in their order, then the runs after it in theirs."""
    return [(trial.stage, trial) for trial in (*seen.searched, *seen.runs)]
