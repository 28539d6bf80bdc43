"""The look of all plots: colours that colour-blind people can tell apart, shapes, axes and hover text."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from pathlib import Path
from typing import Any

from autofit.records.states import Outcome
from autofit.records.trial import Trial
from autofit.records.units import format_bytes
from autofit.report.columns import Output, trial_columns, trial_rows

# Okabe and Ito, Color Universal Design (2008): distinct with every common form of colour blindness
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BLACK = "#56B4E9", "#CC79A7", "#000000"

# multiple of the highest reading up to which a limit or ceiling is drawn; a higher one would flatten everything else, so
# the caption names it instead
FAR = 3.0
HEADROOM = 1.12  # ratio of the top of an axis to the highest value drawn
_HEIGHT_PIXELS = 420  # of a plot with two numeric axes
_FRAME_PIXELS = 130  # of a plot with rows: total height of the legend, axis and margins
_ROW_PIXELS = 30
_HOVER_CHARACTERS = 58  # of a line of hover text: readable, and no wider than a phone
_HOVER_LINES = 6  # of each text in a hover box, so that a long error does not cover the plot
_LOOK = Path(__file__).parent / "templates" / "plot.json"
_SYMBOL_PIXELS = {"star": 18, "x": 12}
_OUTLINED = ("star", "x")
_IN_TITLE = ("trial", "batch_size", "workers", "queue")  # columns whose values are in the title of a hover text


@dataclass(frozen=True)
class Plot:
    """A section of the page: a plotly figure and its caption."""

    name: str
    title: str
    caption: str
    figure: Any


@dataclass(frozen=True)
class MemoryScale:
    """An axis of memory: its unit, its top in that unit, and the limit in bytes, None without a limit."""

    unit: str
    unit_bytes: float
    top: float
    limit_bytes: int | None
    is_limit_drawn: bool

    @classmethod
    def of(cls, highest_bytes: float, limit_bytes: int | None) -> MemoryScale:
        """Return an axis for values up to `highest_bytes`, and for the memory limit unless it is far above these."""
        drawn = limit_bytes is not None and limit_bytes <= FAR * highest_bytes
        top = max(highest_bytes, limit_bytes or 0) if drawn else highest_bytes
        unit, unit_bytes = ("GiB", 2.0**30) if highest_bytes >= 2.0**30 else ("MiB", 2.0**20)
        return cls(unit, unit_bytes, HEADROOM * top / unit_bytes, limit_bytes, drawn)

    def axis(self, title: str) -> dict[str, Any]:
        return {"title": f"{title} ({self.unit})", "range": [0, self.top]}

    def limit_line(self, x: Sequence[Any]) -> dict[str, Any]:
        """Return a line at the limit between two positions `x`; it has no points if the limit is not drawn."""
        if self.limit_bytes is None or not self.is_limit_drawn:
            return {"x": []}
        name, heights = f"limit {format_bytes(self.limit_bytes)}", [self.limit_bytes / self.unit_bytes] * len(x)
        look = {"mode": "lines", "line": {"color": VERMILION, "dash": "longdash", "width": 2}, "hoverinfo": "skip"}
        return {"type": "scatter", "name": name, "x": list(x), "y": heights, **look}

    def sentence(self) -> str:
        if self.limit_bytes is None:
            return "There is no separate limit."
        limit = format_bytes(self.limit_bytes)
        if self.is_limit_drawn:
            return f"The limit is {limit}."
        return f"The limit, {limit}, is far above the points and not drawn."


def figure(traces: Iterable[Mapping[str, Any]], height: int = _HEIGHT_PIXELS, **layout: Any) -> Any:
    """Return a plotly figure; leave out traces without points."""
    import plotly.graph_objects as go  # loads slowly: only when a report is drawn

    look = json.loads(_LOOK.read_text(encoding="utf-8"))
    return go.Figure([dict(trace) for trace in traces if trace["x"]], {"template": look, "height": height, **layout})


def rows(traces: Iterable[Mapping[str, Any]], labels: Sequence[str], **layout: Any) -> Any:
    """Return a plotly figure with a row for each label, the first on top."""
    axis: dict[str, Any] = {"type": "category", "categoryorder": "array", "categoryarray": list(labels), "ticks": ""}
    axis |= {"range": [len(labels) - 0.4, -0.6], "rangemode": "normal", "tickfont": {"size": 12}}
    return figure(traces, _FRAME_PIXELS + _ROW_PIXELS * len(labels), yaxis=axis, **layout)


def batch_axis(lowest: float, highest: float) -> dict[str, Any]:
    """Return a logarithmic axis of batch sizes with ticks at powers of two."""
    powers = [2**k for k in range(floor(log2(lowest)), ceil(log2(highest)) + 1)]
    shown = powers[:: max(1, len(powers) // 8)]
    scale = {"type": "log", "range": [log10(lowest), log10(highest)], "rangemode": "normal"}
    ticks = {"tickvals": shown, "ticktext": [f"{value:,}" for value in shown]}
    return {"title": "batch size (samples)", **scale, **ticks}


def marks(
    name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], symbol: str, color: str, **more: Any
) -> dict[str, Any]:
    """Return a trace of markers; stars and crosses have an outline."""
    outline = {"width": 1, "color": BLACK} if symbol in _OUTLINED else {"width": 2, "color": color}
    marker = {"symbol": symbol, "color": color, "size": _SYMBOL_PIXELS.get(symbol), "line": outline}
    points = {"type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": list(y), "hovertext": list(hover)}
    return {**points, "marker": marker, "cliponaxis": symbol != "x", **more}


def trial_marks(
    name: str, trials: Sequence[Trial], y: Callable[[Trial], Any], symbol: str, color: str, **more: Any
) -> dict[str, Any]:
    """Return a trace with a marker for each trial that has a batch size, at that batch size and the height `y(trial)`."""
    trials = [trial for trial in trials if trial.config.batch_size]
    sizes = [trial.config.batch_size for trial in trials]
    return marks(name, sizes, [y(trial) for trial in trials], [*map(trial_hover, trials)], symbol, color, **more)


def bars(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return a trace of horizontal bars."""
    points = {"type": "bar", "name": name, "x": list(x), "y": list(y), "hovertext": list(hover), "orientation": "h"}
    return {**points, "marker": {"color": BLUE}, **more}


def hover(title: str, lines: Sequence[str]) -> str:
    """Return hover text, escaped so that texts from the user's code cannot become markup."""
    wrapped = [html.escape(part) for text in lines for part in textwrap.wrap(text, _HOVER_CHARACTERS)[:_HOVER_LINES]]
    return "<br>".join([f"<b>{html.escape(title)}</b>", *wrapped])


def trial_hover(trial: Trial) -> str:
    """Return the hover text of a trial: its outcome, its readings and why it was tried."""
    (row,), evidence = trial_rows([trial], None), trial.measurement.evidence
    lines = []
    if trial.measurement.outcome is not Outcome.OK:
        lines.append(f"{evidence.reason} ({evidence.phase.label})" if evidence.phase else evidence.reason)
    readings = [column for column in trial_columns(Output.PAGE, [row]) if column.name not in _IN_TITLE]
    lines += [f"{column.label}: {column.field(row).text}" for column in readings]
    if trial.why:
        lines.append(f"why: {trial.why}")
    return hover(str(trial.config), lines)
