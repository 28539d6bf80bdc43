"""The plots of goodput: what each batch size is worth, and how the noise scale that says it changed during training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofit.records.noise import NoiseScale
from autofit.records.result import TuneRecord
from autofit.records.sweep import SweepRecord
from autofit.report.choice import SCALE_FACTOR
from autofit.report.html import style
from autofit.report.html.plots import cells_by_row, edges, rate_of
from autofit.report.html.style import BLUE, GREEN, ORANGE, VERMILION, Plot
from autofit.report.noise import in_words

_CURVE_POINTS = 50
_TICKS = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
_SIZES = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]
_SAMPLES = {"title": "samples", "type": "log", "tickvals": _SIZES, "ticktext": [f"{size:,}" for size in _SIZES]}
_ROOM = 1.2  # factor of space below the lowest and above the highest point
_CAPTION = (
    "Relative to batch {before}. A larger batch gets more samples a second, but each of its samples brings less progress: "
    "(φ + {before})/(φ + batch), where φ = {scale:,.0f} is the noise scale after {steps:,} updates. Their product says how "
    "much sooner the same loss is reached, if the learning rate is tuned for each batch. The band is the interval of the "
    "scale, widened because scales rise during training. Nothing is said about the final accuracy."
)
_CAPTION_OF_CELLS = (
    "Batches far below the noise scale φ use each sample fully, batches far above it waste most. Each row has φ with its "
    "95 % interval, the batch of the baseline and the one that was chosen."
)
_CAPTION_OF_UPDATES = (
    "Batches far below the noise scale φ use each sample fully, batches far above it waste most. φ was measured after "
    "{steps} updates with batch {before}; the last value counts. It rises during most trainings, so expect a higher one."
)


def goodput(record: TuneRecord) -> Plot | None:
    """Plot what each batch size is worth; return None if the noise scale or the baseline's rate is not known.

    The plot answers "which batch size reaches the same loss first, and how sure is that?".
    """
    scale, before = record.noise_scale, record.speedup.baseline.batch_size
    rates: dict[int, float] = {}
    for trial in (*record.trials, *record.runs):
        if rate_of(trial) and trial.config.batch_size:
            rates[trial.config.batch_size] = max(rate_of(trial), rates.get(trial.config.batch_size, 0.0))
    if scale is None or scale.value is None or scale.low is None or scale.high is None or before not in rates:
        return None
    known, phis = scale, (scale.low / SCALE_FACTOR, scale.value, SCALE_FACTOR * scale.high)

    def progress(batch: float) -> tuple[float, float, float]:
        low, middle, high = (known.progress(batch, before, phi) for phi in phis)
        return min(low, high), middle, max(low, high)

    sizes = sorted(rates)
    ends = edges(record)
    relative = [rates[size] / rates[before] for size in sizes]
    worth = [[each * rate for each in progress(size)] for size, rate in zip(sizes, relative, strict=True)]
    between = np.geomspace(*ends, _CURVE_POINTS)
    low, middle, high = zip(*map(progress, between), strict=True)
    hover = [
        style.hover(
            f"batch {size:,}", [f"{rate:.2f}x the samples/s", f"{y:.2f}x to the same loss: {least:.2f} to {most:.2f}"]
        )
        for size, rate, (least, y, most) in zip(sizes, relative, worth, strict=True)
    ]
    line: dict[str, Any] = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "x": list(between)}
    no_line = {**line, "showlegend": False, "line": {"width": 0, "color": ORANGE}}
    least, values, most = zip(*worth, strict=True)
    bars = style.intervals(least, values, most, GREEN)
    look = {"mode": "lines+markers", "line": {"color": GREEN, "width": 2}, "error_y": bars}
    of_rate = {"mode": "lines+markers", "line": {"color": BLUE, "width": 2, "dash": "dot"}}
    traces = [
        {**no_line, "y": list(low)},
        {**no_line, "y": list(high), "fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"},
        {**line, "name": "progress of a sample", "y": list(middle), "line": {"color": ORANGE, "width": 2}},
        style.marks("samples a second", sizes, relative, hover, "circle", BLUE, **of_rate),
        style.marks("to the same loss", sizes, values, hover, "square", GREEN, **look),
    ]
    now = record.config.batch_size
    if now in rates:
        traces.append(style.marks("chosen", [now], [worth[sizes.index(now)][1]], [str(record.config)], "star", VERMILION))
    drawn_at = [*relative, *itertools.chain.from_iterable(worth), *low, *high]
    span = [math.log10(min(drawn_at) / _ROOM), math.log10(max(drawn_at) * _ROOM)]
    y_axis = {
        "title": f"relative to batch {before:,}",
        "type": "log",
        "range": span,
        "tickvals": _TICKS,
        "ticktext": [f"{tick:g}" for tick in _TICKS],
    }
    drawn = style.figure(traces, xaxis=style.batch_axis(*ends), yaxis=y_axis)
    caption = _CAPTION.format(before=before, scale=scale.value, steps=scale.at_step or 0)
    return Plot("goodput", "How much sooner each batch size reaches the same loss", caption, drawn)


def noise_scale(record: TuneRecord) -> Plot | None:
    """Plot the noise scale after each number of updates; return None if it was measured fewer than twice.

    The plot answers "does the noise scale still rise, and how far are my batch sizes from it?".
    """
    last, before = record.noise_scale, record.speedup.baseline.batch_size
    scales = [] if last is None else [scale for scale in (*last.trend, last) if scale.low and scale.at_step]
    if len(scales) < 2 or not before:
        return None
    steps = [scale.at_step or 0 for scale in scales]
    hover = [style.hover(f"after {step:,} updates", [in_words(scale)]) for step, scale in zip(steps, scales, strict=True)]
    ends = [min(steps) / _ROOM, max(steps) * _ROOM]
    drawn, bars = _intervals(scales)
    look = {"mode": "lines+markers", "line": {"color": ORANGE, "width": 2}, "error_y": bars}
    traces = [style.marks("noise scale", steps, drawn, hover, "circle", ORANGE, **look)]
    sizes = {"baseline": before, "chosen": record.config.batch_size or before}
    for (name, size), color in zip(sizes.items(), (BLUE, VERMILION), strict=True):
        line = {"color": color, "width": 2, "dash": "longdash"}
        named = f"{name}: batch {size:,}"
        traces.append({"type": "scatter", "mode": "lines", "name": named, "x": ends, "y": [size, size], "line": line})
    x_axis = {"title": "updates of the weights", "type": "log", "range": [math.log10(end) for end in ends]}
    ticks = {"tickvals": steps, "ticktext": [f"{step:,}" for step in steps]}
    figure = style.figure(traces, xaxis={**x_axis, **ticks}, yaxis=_SAMPLES)
    named = ", ".join(f"{step:,}" for step in steps[:-1]) + f" and {steps[-1]:,}"
    caption = _CAPTION_OF_UPDATES.format(steps=named, before=before)
    return Plot("noise_scale", "How far each batch size is from the noise scale", caption, figure)


def cell_noise_scales(record: SweepRecord) -> Plot | None:
    """Plot the noise scale of each cell of a sweep; return None if none was measured.

    The plot answers "which of my workloads gains from larger batches?".
    """
    results = {label: cell.result for label, cell in cells_by_row(record).items() if cell.result is not None}
    labels = [label for label, result in results.items() if result.noise_scale is not None and result.noise_scale.low]
    shown = [results[label] for label in labels]
    scales = [result.noise_scale for result in shown if result.noise_scale is not None]
    if not scales:
        return None
    drawn, bars = _intervals(scales)
    hover = [style.hover(label, [in_words(scale)]) for label, scale in zip(labels, scales, strict=True)]
    traces = [style.marks("noise scale", drawn, labels, hover, "circle", ORANGE, error_x=bars)]
    before, now = [result.speedup.baseline for result in shown], [result.config for result in shown]
    for name, configs, symbol, color in (("baseline", before, "square", BLUE), ("chosen", now, "star", VERMILION)):
        texts = [style.hover(label, [str(config)]) for label, config in zip(labels, configs, strict=True)]
        sizes = [config.batch_size for config in configs]  # where it is None, plotly draws nothing
        traces.append(style.marks(name, sizes, labels, texts, symbol, color))
    figure = style.rows(traces, labels, xaxis=_SAMPLES)
    return Plot("cell-noise-scales", "How far each cell's batch is from its noise scale", _CAPTION_OF_CELLS, figure)


def _intervals(scales: Sequence[NoiseScale]) -> tuple[list[float], dict[str, Any]]:
    """Return the scales, or else what they are at least, and their intervals as error bars."""
    drawn, low = [scale.value_or_low or 0.0 for scale in scales], [scale.low or 0.0 for scale in scales]
    high = [scale.high or at for scale, at in zip(scales, drawn, strict=True)]
    return drawn, style.intervals(low, drawn, high, ORANGE)
