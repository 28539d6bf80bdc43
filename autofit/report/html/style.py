"""How every plot looks: colours that the colour-blind tell apart, a shape or a dash for each, axes, and hover text."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2, log10
from typing import Any

from autofit.records.trial import FitConfig, Outcome, Trial
from autofit.records.units import format_bytes, format_rate, format_seconds

# Okabe and Ito, Color Universal Design (2008): told apart with every common form of colour blindness
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BLACK = "#56B4E9", "#CC79A7", "#000000"
INK, SOFT, GRID, PANEL = "#1f2933", "#616e7c", "#e4e7eb", "#f5f7fa"

HEIGHT = 420
"""Pixels of a plot with two numeric axes."""

_ROW_PIXELS, _FRAME_PIXELS = 34, 130  # of a plot with a row for each of something; what stands around the rows
_HOVER_CHARACTERS = 58  # a line of hover text: readable, and no wider than a phone
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

OUTCOMES = {
    Outcome.OK: "ok",
    Outcome.DEVICE_OOM: "out of device memory",
    Outcome.HOST_OOM: "out of host memory",
    Outcome.TIMEOUT: "timeout",
    Outcome.CRASHED: "crashed",
    Outcome.ERROR: "error",
}


@dataclass(frozen=True)
class Plot:
    """A section of the page: a figure and what it says; `figure` is None where a sentence says all there is."""

    name: str
    title: str
    caption: str
    figure: Any | None = None


def figure(traces: Sequence[Mapping[str, Any]], height: int = HEIGHT, **layout: Any) -> Any:
    """A plotly figure in the look of the report."""
    import plotly.graph_objects as go  # heavy: only a report needs it

    return go.Figure(
        data=[dict(trace) for trace in traces],
        layout={
            "template": "none",
            "height": height,
            "font": {"family": _FONT, "size": 13, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "margin": {"l": 64, "r": 20, "t": 16, "b": 52},
            "hovermode": "closest",
            "hoverlabel": {
                "bgcolor": "white", "bordercolor": SOFT, "align": "left",
                "font": {"family": _FONT, "size": 12, "color": INK},
            },
            "legend": {
                "orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"size": 12},
                "itemwidth": 40,
            },
            **layout,
        },
    )  # fmt: skip


def height_of(rows: int) -> int:
    """Pixels of a plot with so many rows."""
    return _FRAME_PIXELS + _ROW_PIXELS * rows


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis from 0, with a quiet grid."""
    return {
        "title": {"text": title, "font": {"size": 13}, "standoff": 10},
        "gridcolor": GRID,
        "linecolor": SOFT,
        "ticks": "outside",
        "tickcolor": GRID,
        "zeroline": False,
        "automargin": True,
        "rangemode": "tozero",
        **more,
    }


def batch_axis(lowest: float, highest: float) -> dict[str, Any]:
    """A logarithmic axis of batch sizes, ticks at powers of two: on it doubling the batch is always the same step."""
    powers = [2**k for k in range(floor(log2(lowest)), ceil(log2(highest)) + 1)]
    shown = powers[:: max(1, len(powers) // 8)]
    return axis(
        "batch size (samples)",
        type="log",
        tickvals=shown,
        ticktext=[f"{value:,}" for value in shown],
        range=[log10(lowest), log10(highest)],
        rangemode="normal",
    )


def row_axis(labels: Sequence[str]) -> dict[str, Any]:
    """An axis with a row for each label, the first on top."""
    return axis(
        "",
        type="category",
        categoryorder="array",
        categoryarray=list(labels),
        range=[len(labels) - 0.4, -0.6],
        gridcolor=GRID,
        rangemode="normal",
        ticks="",
        tickfont={"size": 12},
    )


def marks(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **marker: Any) -> dict[str, Any]:
    """A trace of markers."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "hovertext": list(hover),
        "hoverinfo": "text",
        "marker": {"size": 11, "line": {"width": 2, "color": marker.get("color", BLUE)}, **marker},
    }


def line(name: str, x: Sequence[Any], y: Sequence[Any], color: str, dash: str = "solid", **more: Any) -> dict[str, Any]:
    """A trace that is a line; it says its own name and value on hover."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": color, "dash": dash, "width": 2},
        "hoverinfo": "skip",
        **more,
    }


def pattern(shape: str) -> dict[str, Any]:
    """A white pattern over a bar's colour, so that the colour alone need not tell."""
    return {"shape": shape, "fillmode": "overlay", "fgcolor": "white", "size": 8, "solidity": 0.3}


def hover(title: str, lines: Sequence[str]) -> str:
    """Hover text: what the user's code says cannot become markup in it."""
    wrapped = [html.escape(part) for text in lines for part in textwrap.wrap(text, _HOVER_CHARACTERS)[:6]]
    return "<br>".join([f"<b>{html.escape(title)}</b>", *wrapped])


def trial_hover(trial: Trial, stage: str = "") -> str:
    """What there is to say of a trial in a few lines."""
    m = trial.measurement
    said = [stage] if stage else []
    if m.outcome is not Outcome.OK:
        said.append(f"{OUTCOMES[m.outcome]}: {m.evidence.reason}" + (f" ({m.evidence.phase})" if m.evidence.phase else ""))
    if m.samples_per_second is not None:
        said.append(f"{format_rate(m.samples_per_second)} samples/s" + spread_in_words(m.spread))
    alone = (("the step alone", m.compute_samples_per_second), ("the input alone", m.input_samples_per_second))
    said += [f"{name}: {format_rate(rate)} samples/s" for name, rate in alone if rate is not None]
    peaks = (("device", m.device_peak_bytes), ("host", m.host_peak_bytes))
    said += [f"{name} peak {format_bytes(peak)}" for name, peak in peaks if peak is not None]
    said.append(f"took {format_seconds(m.seconds)}")
    if trial.why:
        said.append(f"why: {trial.why}")
    return hover(str(trial.config), said)


def spread_in_words(spread: float | None) -> str:
    """The half-width of a rate's interval, to stand behind the rate."""
    return "" if spread is None else f" ±{spread:.0%}"


def setting_in_words(config: FitConfig) -> str:
    """The knobs other than the batch; where there are none, that the batch is alone."""
    return with_setting(config).removeprefix(" with ") or "batch size alone"


def with_setting(config: FitConfig) -> str:
    """The knobs other than the batch, to stand behind a noun; nothing where there are none."""
    others = replace(config, batch_size=None)
    return f" with {others}" if others.values() else ""
