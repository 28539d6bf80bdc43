"""Plots of a page: rate and memory of a tune against the batch size, and the rates of the cells of a sweep."""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from autofit.records.result import Answer, Cell, SweepRecord, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import format_rate, format_spread
from autofit.report.choice import NONE, baseline, headlines, limits_in_words
from autofit.report.columns import cell_label, peak_share, trial_rows

Point = tuple[Any, Any, str]  # x, y, and the text that is shown while the pointer is on it

# Okabe and Ito, Color Universal Design (2008): distinct with every common form of colour blindness
_BLUE, _ORANGE, _GREEN, _VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_SKY, _PURPLE, _BLACK = "#56B4E9", "#CC79A7", "#000000"

_LOOK = Path(__file__).parent / "templates" / "plot.json"
_FAR = 3.0  # multiple of the highest peak up to which the limit is drawn; a higher one would flatten everything else
_HEADROOM = 1.12  # ratio of the top of an axis to the highest value drawn
_EDGE = 1.4  # the same at both ends of a logarithmic axis
_HEIGHT_PIXELS = 420  # of a plot with two numeric axes
_FRAME_PIXELS = 130  # of a plot with rows: total height of the legend, axis and margins
_ROW_PIXELS = 30
_HOVER_CHARACTERS = 58  # of a line of hover text: readable, and no wider than a phone
_HOVER_LINES = 6  # of each text in a hover box, so that a long error does not cover the plot
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_IN_TITLE = (
    "trial",
    "batch",
    "workers",
    "queue",
)  # columns whose texts are in the title of a hover text
_OUTLINED = {
    "star": 14,
    "diamond": 11,
    "x": 12,
}  # symbols with an outline, and their sizes in pixels
_MARK_PIXELS = 11
_ERROR_BARS = {
    "type": "data",
    "color": _BLACK,
    "thickness": 1.5,
    "width": 9,
}  # wider than any marker, which hides the bar
_BATCHES = [2**k for k in range(31)]  # ticks
_RATES = [digit * 10**k for k in range(-3, 10) for digit in (1, 1.5, 2, 3, 5, 7)]
_MOST_TICKS = 16


@dataclass(frozen=True)
class Plot:
    """A section of the page: a figure for plotly and its caption."""

    name: str
    title: str
    caption: str
    figure: dict[str, Any]


def throughput(log: TuneLog) -> Plot | None:
    """Plot the rate of each trial and the two rates that bound it; return None if no rate was measured."""
    rated = [trial for trial in log.trials if trial.samples_per_second and trial.config.batch_size]
    if not rated:
        return None
    rated.sort(key=lambda trial: trial.config.batch_size or 0)
    best = (
        log.config
        if isinstance(log, TuneRecord)
        else max(rated, key=attrgetter("samples_per_second")).config
    )
    same = [trial for trial in rated if replace(trial.config, batch_size=best.batch_size) == best]
    others = [trial for trial in rated if trial not in same]
    of_model = [
        trial for trial in rated if trial.config.steps_per_execution == best.steps_per_execution
    ]
    ceilings = [
        _ceiling("model alone", of_model, "compute", "triangle-up-open", _ORANGE, "dash"),
        _ceiling("input alone", same, "input", "square-open", _GREEN, "dot"),
    ]
    marked = _marked(log)
    rates = [trial.samples_per_second or 0.0 for trial in rated] + [
        answer.samples_per_second for _, answer in marked
    ]
    rates += [rate for ceiling in ceilings for rate in ceiling["y"]]
    floor, top = min(rates) / _EDGE, max(rates) * _EDGE
    caption = (
        f"Every point is measured. The rate of {log.call_source.call} is at most that of the model alone, which runs on "
        "one batch again and again, and at most that of the input alone, without a model."
    )
    ooms = [trial for trial in log.trials if trial.measurement.outcome.is_oom]
    failed = [
        trial
        for trial in log.trials
        if trial.measurement.outcome is not Outcome.OK and trial not in ooms
    ]
    setting = replace(best, batch_size=None)
    name = (
        "trials"
        if setting in (FitConfig(), FitConfig(steps_per_execution=1))
        else f"trials with {setting}"
    )
    traces = [
        *ceilings,
        _marks(
            "trials with other settings",
            [_point(t, t.samples_per_second) for t in others],
            "circle-open",
            _SKY,
        ),
        _marks(
            name,
            [_point(t, t.samples_per_second) for t in same],
            "circle",
            _BLUE,
            mode="lines+markers",
        ),
        _marks("out of memory", [_point(t, floor) for t in ooms], "x", _VERMILION),
        _marks("timeout, crash or error", [_point(t, floor) for t in failed], "cross", _PURPLE),
        *(
            _answer(label, answer, [answer.samples_per_second], _spread(answer))
            for label, answer in marked
        ),
    ]
    # a gain at the own batch size would vanish on a linear axis that reaches up to a tenfold one
    figure = _figure(
        traces, xaxis=_batch_axis(traces), yaxis=_log_axis("samples/s", _RATES, floor / _EDGE, top)
    )
    return Plot("throughput", "Throughput against batch size", caption, figure)


def _marked(log: TuneLog) -> list[tuple[str, Answer]]:
    """Return the configs to mark, each with its label: the baseline, with the interval of its runs, and the answers."""
    if not isinstance(log, TuneRecord):
        return []
    answers = [(headline.label, headline.answer) for headline in headlines(log)]
    if (ran := baseline(log)) is None:
        return answers
    from autofit.records.intervals import (
        pooled_half_width,
    )  # loads SciPy: only when a report is drawn

    rates: dict[FitConfig, list[float]] = {ran.config: []}
    for run in log.runs:
        if run.samples_per_second:
            rates.setdefault(run.config, []).append(math.log(run.samples_per_second))
    half_width = pooled_half_width(*rates.values())
    return [("baseline", replace(ran, spread=math.expm1(min(half_width, 1.0)))), *answers]


def _spread(answer: Answer) -> float:
    """Return the relative half-width of the interval to draw; 0 if there is none, or if it is so wide as to say nothing."""
    return answer.spread if answer.spread is not None and answer.spread < 1 else 0.0


def memory(log: TuneLog) -> Plot | None:
    """Plot the peaks of device and host memory as shares of their limits; return None if no peak was read."""
    sized = [trial for trial in (*log.searched, *log.runs) if trial.config.batch_size]
    traces = []
    for which, symbol, color in (("device", "circle", _BLUE), ("host", "square-open", _GREEN)):
        shares = [(trial, peak_share(trial, log.limits, which)) for trial in sized]
        ran = [
            _point(trial, share)
            for trial, share in shares
            if trial.measurement.outcome is Outcome.OK and share
        ]
        full = [
            (trial, share) for trial, share in shares if trial.measurement.outcome == f"{which}_oom"
        ]
        ooms = [_point(trial, max(1.0, share or 0.0)) for trial, share in full]
        traces += [
            _marks(f"{which} memory", ran, symbol, color),
            _marks(f"out of {which} memory", ooms, "x", _VERMILION),
        ]
    heights = [height for trace in traces for height in trace["y"]]
    if not heights:
        return None
    for label, answer in _marked(log):
        peaks = (
            (answer.device_peak_bytes, log.limits.device_bytes),
            (answer.host_peak_bytes, log.limits.host_bytes),
        )
        traces.append(
            _answer(label, answer, [peak / limit for peak, limit in peaks if peak and limit])
        )
    x_axis, caption = _batch_axis(traces), f"Limits: {limits_in_words(log.limits)}."
    top = _HEADROOM * (max(heights) if max(heights) * _FAR < 1 else max(1.0, *heights))
    look = {
        "mode": "lines",
        "line": {"color": _VERMILION, "dash": "longdash", "width": 2},
        "hoverinfo": "skip",
    }
    ends = [10**end for end in x_axis["range"]] if top > 1 else []
    traces.append({"type": "scatter", "name": "limit", "x": ends, "y": [1.0, 1.0], **look})
    y_axis = {
        "title": {"text": "share of the limit"},
        "range": [0, top],
        "tickformat": ".0%" if top > 0.1 else ".1%",
    }
    return Plot(
        "memory",
        "Peak memory against batch size",
        caption,
        _figure(traces, xaxis=x_axis, yaxis=y_axis),
    )


def cell_rates(record: SweepRecord) -> Plot | None:
    """Plot the rate of each cell as a bar; return None if no cell has a result."""
    rated = {
        _row_label(cell, i): cell.result
        for i, cell in enumerate(record.cells, 1)
        if cell.result is not None
    }
    if not rated:
        return None
    rates = [result.samples_per_second for result in rated.values()]
    bars: dict[str, Any] = {
        "type": "bar",
        "x": rates,
        "y": [*rated],
        "orientation": "h",
        "marker": {"color": _BLUE},
    }
    bars["hovertext"] = [
        _hover(str(result.config), [_rate(result.fastest), f"bottleneck: {result.bottleneck}"])
        for result in rated.values()
    ]
    spreads = [result.samples_per_second * _spread(result.fastest) for result in rated.values()]
    bars["error_x"] = {**_ERROR_BARS, "array": spreads}
    x_axis = {"title": {"text": "samples/s"}, "tickformat": ",~r"}
    y_axis = {
        "type": "category",
        "autorange": "reversed",
        "rangemode": "normal",
        "ticks": "",
        "tickfont": {"size": 12},
    }
    caption = "Each bar is the rate of a cell's fastest configuration, with its interval."
    drawn = _figure(
        [bars], _FRAME_PIXELS + _ROW_PIXELS * len(rated), bargap=0.3, xaxis=x_axis, yaxis=y_axis
    )
    return Plot("cell-rates", "Throughput by cell", caption, drawn)


def _row_label(cell: Cell, number: int) -> str:
    label = cell_label(cell.values)
    return html.escape(
        label
        if len(label) <= _LABEL_CHARACTERS
        else f"{label[: _LABEL_CHARACTERS - 6]}… ({number})"
    )


def _figure(
    traces: Iterable[dict[str, Any]], height: int = _HEIGHT_PIXELS, **layout: Any
) -> dict[str, Any]:
    look = json.loads(_LOOK.read_text(encoding="utf-8"))
    return {
        "data": [trace for trace in traces if trace["x"]],
        "layout": {"template": look, "height": height, **layout},
    }


def _batch_axis(traces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    sizes = [size for trace in traces for size in trace["x"]]
    return _log_axis("batch size (samples)", _BATCHES, min(sizes) / _EDGE, max(sizes) * _EDGE)


def _log_axis(title: str, ticks: Sequence[float], lowest: float, highest: float) -> dict[str, Any]:
    inside = [tick for tick in ticks if lowest <= tick <= highest]
    shown = inside[:: 1 + len(inside) // _MOST_TICKS]
    scale = {
        "type": "log",
        "range": [math.log10(lowest), math.log10(highest)],
        "rangemode": "normal",
    }
    return {
        "title": {"text": title},
        **scale,
        "tickvals": shown,
        "ticktext": [f"{tick:,.10g}" for tick in shown],
    }


def _marks(
    name: str, points: Sequence[Point], symbol: str, color: str, **more: Any
) -> dict[str, Any]:
    x, y, hover = ([point[part] for point in points] for part in range(3))
    outline = {"width": 1, "color": _BLACK} if symbol in _OUTLINED else {"width": 2, "color": color}
    marker = {
        "symbol": symbol,
        "color": color,
        "size": _OUTLINED.get(symbol, _MARK_PIXELS),
        "line": outline,
    }
    data = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "hovertext": hover}
    return {**data, "marker": marker, "cliponaxis": symbol != "x", **more}


def _ceiling(
    name: str, trials: Iterable[Trial], part: Any, symbol: str, color: str, dash: str
) -> dict[str, Any]:
    highest: dict[int, float] = {}
    for trial in trials:
        size, rate = trial.config.batch_size or 0, trial.measurement.alone(part)
        if rate:
            highest[size] = max(rate, highest.get(size, 0.0))
    points = [
        (size, rate, _hover(name, [f"batch {size}: {format_rate(rate)} samples/s"]))
        for size, rate in highest.items()
    ]
    return _marks(name, points, symbol, color, mode="lines+markers", line={"dash": dash})


def _answer(
    label: str, answer: Answer, heights: Sequence[float], spread: float = 0.0
) -> dict[str, Any]:
    """Return a trace that marks the baseline or an answer; `spread` is half of its error bar, relative to the height."""
    symbol, color = {"baseline": ("diamond", _BLACK), "fastest": ("star", _VERMILION)}.get(
        label, ("star", _SKY)
    )
    name = label if answer.confirmed else f"{label}, not confirmed"
    hover = _hover(f"{name}: {answer.config}", [_rate(answer)])
    points = [
        (answer.config.batch_size, height, hover) for height in heights if answer.config.batch_size
    ]
    bars = (
        {"error_y": {**_ERROR_BARS, "array": [spread * height for height in heights]}}
        if spread
        else {}
    )
    return _marks(name, points, symbol, color, **bars)


def _rate(answer: Answer) -> str:
    spread = f" {format_spread(_spread(answer))}" if _spread(answer) else ""
    return f"{format_rate(answer.samples_per_second)} samples/s{spread}"


def _point(trial: Trial, y: float) -> Point:
    (row,), evidence = trial_rows([trial], None), trial.measurement.evidence
    phase = f" ({evidence.phase.label})" if evidence.phase else ""
    lines = [] if trial.measurement.outcome is Outcome.OK else [evidence.reason + phase]
    lines += [
        f"{column}: {text}"
        for column, text in row.items()
        if column not in _IN_TITLE and text != NONE
    ]
    lines += [f"why: {trial.why}"] if trial.why else []
    return trial.config.batch_size or 0, y, _hover(str(trial.config), lines)


def _hover(title: str, lines: Sequence[str]) -> str:
    """Return hover text, escaped so that texts from the user's code cannot become markup."""
    wrapped = [
        html.escape(part)
        for text in lines
        for part in textwrap.wrap(text, _HOVER_CHARACTERS)[:_HOVER_LINES]
    ]
    return "<br>".join([f"<b>{html.escape(title)}</b>", *wrapped])
