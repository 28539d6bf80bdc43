"""Plots of a page: rate and memory of a tune against the batch size, and the rates of the cells of
a sweep.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, SweepRecord, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.records.units import format_rate, format_spread
from autofit.report.choice import NONE, baseline, headlines, limits_in_words
from autofit.report.columns import cell_label, peak_share, trial_rows

# x, y, and the text that is shown while the pointer is on it
Point = tuple[Any, Any, str]

# Okabe and Ito, Color Universal Design (2008): distinct with every common form of colour blindness
_BLUE = "#0072B2"
_ORANGE = "#E69F00"
_GREEN = "#009E73"
_VERMILION = "#D55E00"
_SKY = "#56B4E9"
_PURPLE = "#CC79A7"
_BLACK = "#000000"

_LOOK = Path(__file__).parent / "templates" / "plot.json"
# multiple of the highest peak up to which the limit is drawn: a higher one would flatten all else
_FAR = 3.0
# ratio of the top of an axis to the highest value drawn, and the same at both ends of a logarithmic
# axis
_HEADROOM = 1.12
_EDGE = 1.4
# heights: of a plot with two numeric axes; of a plot with rows, its legend, axis and margins
_HEIGHT_PIXELS = 420
_FRAME_PIXELS = 130
_ROW_PIXELS = 30
# of a line of hover text: readable, and no wider than a phone
_HOVER_CHARACTERS = 58
# of each text in a hover box, so that a long error does not cover the plot
_HOVER_LINES = 6
# a longer label leaves no room for the bars
_LABEL_CHARACTERS = 42
# columns whose texts are in the title of a hover text
_IN_TITLE = ("trial", "batch", "workers", "queue")
# symbols with an outline, and their sizes in pixels
_OUTLINED = {"star": 14, "diamond": 11, "x": 12}
_MARK_PIXELS = 11
# wider than any marker, which would hide the bar
_ERROR_BARS = {"type": "data", "color": _BLACK, "thickness": 1.5, "width": 9}
# ticks
_BATCHES = [2**k for k in range(31)]
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
    """Plot the rate of each trial and the two rates that bound it; None if no rate was measured."""
    rated = [
        trial
        for trial in log.trials
        if trial.samples_per_second and trial.config.batch_size
    ]
    if not rated:
        return None
    rated.sort(key=lambda trial: trial.config.batch_size or 0)
    fastest = max(rated, key=lambda trial: trial.samples_per_second or 0.0)
    best = log.config if isinstance(log, TuneRecord) else fastest.config
    same = [
        trial
        for trial in rated
        if replace(trial.config, batch_size=best.batch_size) == best
    ]
    steps = best.steps_per_execution
    of_model = [trial for trial in rated if trial.config.steps_per_execution == steps]
    ceilings = [
        _ceiling(
            "model alone", of_model, "compute", "triangle-up-open", _ORANGE, "dash"
        ),
        _ceiling("input alone", same, "input", "square-open", _GREEN, "dot"),
    ]
    setting = replace(best, batch_size=None)
    is_plain = setting in (FitConfig(), FitConfig(steps_per_execution=1))
    others = [_rated(trial) for trial in rated if trial not in same]
    traces = [
        *ceilings,
        _marks("trials with other settings", others, "circle-open", _SKY),
        _marks(
            "trials" if is_plain else f"trials with {setting}",
            [_rated(trial) for trial in same],
            "circle",
            _BLUE,
            mode="lines+markers",
        ),
    ]
    marked = _marked(log)
    rates = [trial.samples_per_second or 0.0 for trial in rated]
    rates += [answer.samples_per_second for _, answer in marked]
    for ceiling in ceilings:
        rates += ceiling["y"]
    floor = min(rates) / _EDGE
    traces += _failures(log, floor)
    for label, answer in marked:
        traces.append(
            _answer(label, answer, [answer.samples_per_second], _spread(answer))
        )
    # a gain at the own batch size would vanish on a linear axis that reaches up to a tenfold one
    y_axis = _log_axis("samples/s", _RATES, floor / _EDGE, max(rates) * _EDGE)
    caption = (
        f"Every point is measured. The rate of {log.call_source.call} is at most that of the model "
        "alone, which runs on one batch again and again, and at most that of the input alone, "
        "without a model."
    )
    figure = _figure(traces, xaxis=_batch_axis(traces), yaxis=y_axis)
    return Plot("throughput", "Throughput against batch size", caption, figure)


def _failures(log: TuneLog, height: float) -> list[dict[str, Any]]:
    """Return the traces of trials that ran out of memory, and of those that failed otherwise."""
    ooms: list[Point] = []
    others: list[Point] = []
    for trial in log.trials:
        outcome = trial.measurement.outcome
        if outcome is not Outcome.OK:
            (ooms if outcome.is_oom else others).append(_point(trial, height))
    return [
        _marks("out of memory", ooms, "x", _VERMILION),
        _marks("timeout, crash or error", others, "cross", _PURPLE),
    ]


def _marked(log: TuneLog) -> list[tuple[str, Answer]]:
    """Return what to mark, each with its label: the baseline, with the interval of its runs, and
    the answers.
    """
    if not isinstance(log, TuneRecord):
        return []
    answers = [(headline.label, headline.answer) for headline in headlines(log)]
    ran = baseline(log)
    if ran is None:
        return answers
    # loads SciPy: only when a report is drawn
    from autofit.records.intervals import pooled_half_width

    rates: dict[FitConfig, list[float]] = {ran.config: []}
    for run in log.runs:
        if run.samples_per_second:
            rates.setdefault(run.config, []).append(math.log(run.samples_per_second))
    half_width = pooled_half_width(*rates.values())
    return [
        ("baseline", replace(ran, spread=math.expm1(min(half_width, 1.0)))),
        *answers,
    ]


def _spread(answer: Answer) -> float:
    """Return the relative half-width of the interval to draw.

    It is 0 if there is none, or if it is so wide as to say nothing.
    """
    return answer.spread if answer.spread is not None and answer.spread < 1 else 0.0


def memory(log: TuneLog) -> Plot | None:
    """Plot the peaks of both memories as shares of their limits; None if no peak was read."""
    traces = [
        *_peaks(log, "device", "circle", _BLUE),
        *_peaks(log, "host", "square-open", _GREEN),
    ]
    highest = max((height for trace in traces for height in trace["y"]), default=None)
    if highest is None:
        return None
    for label, answer in _marked(log):
        peaks = (
            (answer.device_peak_bytes, log.limits.device_bytes),
            (answer.host_peak_bytes, log.limits.host_bytes),
        )
        shares = [peak / limit for peak, limit in peaks if peak and limit]
        traces.append(_answer(label, answer, shares))
    x_axis = _batch_axis(traces)
    top = _HEADROOM * (highest if highest * _FAR < 1 else max(1.0, highest))
    limit = {
        "type": "scatter",
        "name": "limit",
        "x": [10**end for end in x_axis["range"]] if top > 1 else [],
        "y": [1.0, 1.0],
        "mode": "lines",
        "line": {"color": _VERMILION, "dash": "longdash", "width": 2},
        "hoverinfo": "skip",
    }
    y_axis = {
        "title": {"text": "share of the limit"},
        "range": [0, top],
        "tickformat": ".0%" if top > 0.1 else ".1%",
    }
    caption = f"Limits: {limits_in_words(log.limits)}."
    figure = _figure([*traces, limit], xaxis=x_axis, yaxis=y_axis)
    return Plot("memory", "Peak memory against batch size", caption, figure)


def _peaks(log: TuneLog, memory: str, symbol: str, color: str) -> list[dict[str, Any]]:
    """Return the traces of the trials that took a memory, and of those that ran out of it."""
    ran = []
    ooms = []
    for trial in log.readings:
        if trial.config.batch_size:
            share = peak_share(trial, log.limits, memory) or 0.0
            if trial.measurement.outcome == f"{memory}_oom":
                ooms.append(_point(trial, max(1.0, share)))
            elif trial.measurement.outcome is Outcome.OK and share:
                ran.append(_point(trial, share))
    return [
        _marks(f"{memory} memory", ran, symbol, color),
        _marks(f"out of {memory} memory", ooms, "x", _VERMILION),
    ]


def cell_rates(record: SweepRecord) -> Plot | None:
    """Plot the rate of each cell as a bar; return None if no cell has a result."""
    labels = []
    rates = []
    spreads = []
    hovers = []
    for number, cell in enumerate(record.cells, 1):
        if cell.result is not None:
            fastest = cell.result.fastest
            lines = [_rate(fastest), f"bottleneck: {cell.result.bottleneck}"]
            label = cell_label(cell.values)
            if len(label) > _LABEL_CHARACTERS:
                label = f"{label[: _LABEL_CHARACTERS - 6]}… ({number})"
            labels.append(html.escape(label))
            rates.append(fastest.samples_per_second)
            spreads.append(fastest.samples_per_second * _spread(fastest))
            hovers.append(_hover(str(fastest.config), lines))
    if not labels:
        return None
    bars = {
        "type": "bar",
        "x": rates,
        "y": labels,
        "orientation": "h",
        "marker": {"color": _BLUE},
        "hovertext": hovers,
        "error_x": {**_ERROR_BARS, "array": spreads},
    }
    x_axis = {"title": {"text": "samples/s"}, "tickformat": ",~r"}
    y_axis = {
        "type": "category",
        "autorange": "reversed",
        "rangemode": "normal",
        "ticks": "",
        "tickfont": {"size": 12},
    }
    caption = (
        "Each bar is the rate of a cell's fastest configuration, with its interval."
    )
    height = _FRAME_PIXELS + _ROW_PIXELS * len(labels)
    figure = _figure([bars], height, bargap=0.3, xaxis=x_axis, yaxis=y_axis)
    return Plot("cell-rates", "Throughput by cell", caption, figure)


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
    return _log_axis(
        "batch size (samples)", _BATCHES, min(sizes) / _EDGE, max(sizes) * _EDGE
    )


def _log_axis(
    title: str, ticks: Sequence[float], lowest: float, highest: float
) -> dict[str, Any]:
    inside = [tick for tick in ticks if lowest <= tick <= highest]
    shown = inside[:: 1 + len(inside) // _MOST_TICKS]
    return {
        "title": {"text": title},
        "type": "log",
        "range": [math.log10(lowest), math.log10(highest)],
        "rangemode": "normal",
        "tickvals": shown,
        "ticktext": [f"{tick:,.10g}" for tick in shown],
    }


def _marks(
    name: str, points: Sequence[Point], symbol: str, color: str, **more: Any
) -> dict[str, Any]:
    outline = (
        {"width": 1, "color": _BLACK}
        if symbol in _OUTLINED
        else {"width": 2, "color": color}
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "hovertext": [text for _, _, text in points],
        "marker": {
            "symbol": symbol,
            "color": color,
            "size": _OUTLINED.get(symbol, _MARK_PIXELS),
            "line": outline,
        },
        "cliponaxis": symbol != "x",
        **more,
    }


def _ceiling(
    name: str, trials: Iterable[Trial], part: Any, symbol: str, color: str, dash: str
) -> dict[str, Any]:
    highest: dict[int, float] = {}
    for trial in trials:
        size = trial.config.batch_size or 0
        rate = trial.measurement.alone(part)
        if rate:
            highest[size] = max(rate, highest.get(size, 0.0))
    points = [
        (size, rate, _hover(name, [f"batch {size}: {format_rate(rate)} samples/s"]))
        for size, rate in highest.items()
    ]
    return _marks(
        name, points, symbol, color, mode="lines+markers", line={"dash": dash}
    )


def _answer(
    label: str, answer: Answer, heights: Sequence[float], spread: float = 0.0
) -> dict[str, Any]:
    """Return a trace that marks the baseline or an answer.

    `spread` is half of its error bar, relative to the height.
    """
    symbol = "diamond" if label == "baseline" else "star"
    color = {"baseline": _BLACK, "fastest": _VERMILION}.get(label, _SKY)
    name = label if answer.confirmed else f"{label}, not confirmed"
    hover = _hover(f"{name}: {answer.config}", [_rate(answer)])
    size = answer.config.batch_size
    points = [(size, height, hover) for height in heights] if size else []
    trace = _marks(name, points, symbol, color)
    if spread:
        trace["error_y"] = {
            **_ERROR_BARS,
            "array": [spread * height for height in heights],
        }
    return trace


def _rate(answer: Answer) -> str:
    spread = f" {format_spread(_spread(answer))}" if _spread(answer) else ""
    return f"{format_rate(answer.samples_per_second)} samples/s{spread}"


def _rated(trial: Trial) -> Point:
    return _point(trial, trial.samples_per_second or 0.0)


def _point(trial: Trial, y: float) -> Point:
    lines = []
    if trial.measurement.outcome is not Outcome.OK:
        evidence = trial.measurement.evidence
        phase = f" ({evidence.phase.label})" if evidence.phase else ""
        lines.append(evidence.reason + phase)
    (row,) = trial_rows([trial], None)
    for column, text in row.items():
        if column not in _IN_TITLE and text != NONE:
            lines.append(f"{column}: {text}")
    if trial.why:
        lines.append(f"why: {trial.why}")
    return trial.config.batch_size or 0, y, _hover(str(trial.config), lines)


def _hover(title: str, lines: Sequence[str]) -> str:
    """Return hover text, escaped so that texts from the user's code cannot become markup."""
    wrapped = [
        html.escape(part)
        for text in lines
        for part in textwrap.wrap(text, _HOVER_CHARACTERS)[:_HOVER_LINES]
    ]
    return "<br>".join([f"<b>{html.escape(title)}</b>", *wrapped])
