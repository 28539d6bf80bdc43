"""Plots: throughput and memory of a tune, and the rates of the cells of a sweep."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.sweep import Cell, SweepRecord
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import format_rate, format_spread
from autofit.report.html import style
from autofit.report.html.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, MemoryScale, Plot
from autofit.report.wording import cell_label

_RATE_CAPTION = (
    "Every point is measured. The rate of {} cannot exceed the lower of two rates: that of the model alone, which runs on "
    "one batch repeatedly, and that of the input alone, without a model."
)
_EDGE = 1.4  # factor of space below the smallest and above the largest batch size, so that markers are not cut off
_OTHERS = "trials with other settings"
_LABEL_CHARACTERS = 42  # a longer label leaves no room for the bars
_NUMBER_CHARACTERS = 6  # characters of a shortened label that are its ellipsis and its number
_CROSS_ROOM = 0.03  # free space, relative to the longest bar, so that a cross at 0 does not touch the labels


def throughput(log: TuneLog) -> Plot | None:
    """Plot the throughput against the batch size; return None if no rate was measured.

    The plot answers "which batch size and how many workers are fastest, and what limits the rate?".
    """
    rated = [trial for trial in log.trials if trial.samples_per_second and trial.config.batch_size]
    if not rated:
        return None
    ceilings = {
        "model alone": [rate for trial in rated if (rate := trial.measurement.compute_samples_per_second)],
        "input alone": [rate for trial in rated if (rate := trial.measurement.input_samples_per_second)],
    }
    reached = max(trial.samples_per_second for trial in rated)
    near = [rate for rates in ceilings.values() for rate in rates if rate <= style.FAR * reached]
    final = log.samples_per_second if isinstance(log, TuneRecord) else 0.0
    top = style.HEADROOM * max(reached, final, *near)
    caption = _RATE_CAPTION.format(log.call_source.call)
    for part, rates in ceilings.items():
        if rates and min(rates) > top:
            caption += f" The {part} reaches {format_rate(min(rates))} samples/s or more, which is above the plot."
    setting, same, others = _by_setting(log, rated)
    steps = {trial.config.steps_per_execution for trial in same}
    like_chosen = [trial for trial in rated if trial.config.steps_per_execution in steps]
    ooms = [trial for trial in log.trials if trial.measurement.outcome.is_oom]
    failed = [t for t in log.trials if t.measurement.outcome is not Outcome.OK and t not in ooms]
    chosen = []
    if isinstance(log, TuneRecord) and log.config.batch_size:
        name = "chosen, confirmed" if log.fastest.confirmed else "chosen"
        hover = style.hover(f"{name}: {log.config}", [f"{format_rate(log.samples_per_second)} samples/s"])
        chosen = [style.marks(name, [log.config.batch_size], [log.samples_per_second], [hover], "star", VERMILION)]
    traces = [
        _lines("model alone", like_chosen, "compute_samples_per_second", ORANGE, "dash", "triangle-up-open"),
        _lines("input alone", same, "input_samples_per_second", GREEN, "dot", "square-open"),
        _rate_marks(_OTHERS, others, "circle-open", SKY),
        _rate_marks(setting, same, "circle", BLUE, mode="lines+markers"),
        *chosen,
        style.trial_marks("out of memory", ooms, lambda trial: 0.0, "x", VERMILION),
        style.trial_marks("timeout, crash or error", failed, lambda trial: 0.0, "cross", PURPLE),
    ]
    y_axis = {"title": "samples/s", "range": [-0.04 * top, top], "tickformat": ",~r"}
    drawn = style.figure(traces, xaxis=style.batch_axis(*_edges(log)), yaxis=y_axis)
    return Plot("throughput", "Throughput against batch size", caption, drawn)


def _lines(name: str, trials: Sequence[Trial], field: str, color: str, dash: str, symbol: str) -> dict[str, Any]:
    """Return a line through the highest reading at each batch size."""
    rate = attrgetter(f"measurement.{field}")
    best: dict[int, float] = {}
    for trial in trials:
        if rate(trial) and trial.config.batch_size:
            best[trial.config.batch_size] = max(rate(trial), best.get(trial.config.batch_size, 0.0))
    sizes = sorted(best)
    hover = [style.hover(name, [f"batch {size}: {format_rate(best[size])} samples/s"]) for size in sizes]
    look = {"mode": "lines+markers", "line": {"color": color, "dash": dash, "width": 2}}
    return style.marks(name, sizes, [best[size] for size in sizes], hover, symbol, color, **look)


def _rate_marks(name: str, trials: Sequence[Trial], symbol: str, color: str, **more: Any) -> dict[str, Any]:
    rate = attrgetter("samples_per_second")
    spreads = [rate(trial) * (trial.measurement.spread or 0.0) for trial in trials]
    error_bars = {"type": "data", "array": spreads, "color": color, "thickness": 1.2, "width": 3}
    line = {"line": {"color": color, "width": 2}}
    return style.trial_marks(name, trials, rate, symbol, color, error_y=error_bars, **line, **more)


def memory(log: TuneLog, which: str) -> Plot | None:
    """Plot "device" or "host" memory against the batch size; return None if there is no reading.

    The plot answers "how much memory does a batch size take, and how near is the limit?".
    """
    name, limit = f"{which}_peak_bytes", log.limits.device_bytes if which == "device" else log.limits.host_bytes
    sized, out_of_memory = [t for t in log.trials if t.config.batch_size], Outcome(f"{which}_oom")
    read = [t for t in sized if t.measurement.outcome is Outcome.OK and getattr(t.measurement, name) is not None]
    ooms = [trial for trial in sized if trial.measurement.outcome is out_of_memory]
    if not (read or ooms):
        return None
    scale = MemoryScale.of(max(_reading_bytes(trial, which, limit) for trial in (*read, *ooms)), limit)
    setting, same, others = _by_setting(log, read)

    def height(trial: Trial) -> float:
        return _reading_bytes(trial, which, limit) / scale.unit_bytes

    line = {"mode": "lines+markers", "line": {"color": BLUE, "width": 2}}
    traces = [
        style.trial_marks(_OTHERS, others, height, "circle-open", SKY),
        style.trial_marks(setting, same, height, "circle", BLUE, **line),
        style.trial_marks("out of memory", ooms, height, "x", VERMILION),
        scale.limit_line(_edges(log)),
    ]
    drawn = style.figure(traces, xaxis=style.batch_axis(*_edges(log)), yaxis=scale.axis(f"{which} memory"))
    return Plot(f"memory-{which}", f"{which.capitalize()} memory against batch size", scale.sentence(), drawn)


def _reading_bytes(trial: Trial, which: str, limit_bytes: int | None) -> int:
    """Return the peak in bytes; for a trial that ran out of memory, its highest reading or the limit, whichever is more."""
    peak = getattr(trial.measurement, f"{which}_peak_bytes") or 0
    if trial.measurement.outcome is Outcome.OK:
        return int(peak)
    last = trial.measurement.evidence.last_host_bytes if which == "host" else None
    return max(peak, last or 0, limit_bytes or 0)


def _by_setting(log: TuneLog, trials: Sequence[Trial]) -> tuple[str, list[Trial], list[Trial]]:
    """Return a label for the trials with the knobs of the chosen or fastest config, these, and the others, by size."""
    config = log.config if isinstance(log, TuneRecord) else max(log.trials, key=attrgetter("samples_per_second")).config
    setting = replace(config, batch_size=None)

    def is_same(other: FitConfig) -> bool:
        if other.steps_per_execution != setting.steps_per_execution:
            return False
        return not (other.has_queue or setting.has_queue) or replace(other, batch_size=None) == setting

    trials = sorted(trials, key=lambda trial: trial.config.batch_size or 0)
    same = [trial for trial in trials if is_same(trial.config)]
    is_plain = setting in (FitConfig(), FitConfig(steps_per_execution=1))
    name = "trials" if is_plain else f"trials with {setting}"
    return name, same, [trial for trial in trials if trial not in same]


def _edges(log: TuneLog) -> tuple[float, float]:
    sizes = [trial.config.batch_size for trial in log.trials if trial.config.batch_size]
    return min(sizes) / _EDGE, max(sizes) * _EDGE


def cell_rates(record: SweepRecord) -> Plot | None:
    """Plot the rate of each cell as a bar, in samples per second; return None if no cell has a result.

    The plot answers "which cell is fastest, and by how much?".
    """
    shown = {_row_label(cell, i): cell for i, cell in enumerate(record.cells, 1) if cell.outcome != "waiting"}
    rated = {label: cell.result for label, cell in shown.items() if cell.result is not None}
    failed = {label: cell for label, cell in shown.items() if label not in rated}
    if not rated:
        return None
    heights, spreads, hover = [], [], []
    for label, result in rated.items():
        heights.append(result.samples_per_second)
        spreads.append(result.samples_per_second * (result.spread or 0.0))
        interval = "" if result.spread is None else f" {format_spread(result.spread)}"
        rate = f"{format_rate(result.samples_per_second)} samples/s{interval}"
        lines = [str(result.config), rate, f"bottleneck: {result.bottleneck}"]
        hover.append(style.hover(cell_label(shown[label].values), lines))
    error_bars = {"type": "data", "array": spreads, "color": BLACK, "thickness": 1.2}
    crosses = [style.hover(cell_label(cell.values), [cell.outcome, cell.problem]) for cell in failed.values()]
    traces = [
        style.bars("rate", heights, [*rated], hover, error_x=error_bars, showlegend=False),
        style.marks("no result", [0.0] * len(failed), [*failed], crosses, "x", VERMILION),
    ]
    highest = max(rate + spread for rate, spread in zip(heights, spreads, strict=True))
    x_axis = {"title": "samples/s", "range": [-_CROSS_ROOM * highest, 1.05 * highest], "tickformat": ",~r"}
    caption = "Each bar is the confirmed rate of a cell's fastest configuration."
    caption += " A cross marks a cell without a result." if failed else ""
    drawn = style.rows(traces, [*shown], barmode="overlay", bargap=0.3, xaxis=x_axis)
    return Plot("cell-rates", "Throughput by cell", caption, drawn)


def _row_label(cell: Cell, number: int) -> str:
    text = cell_label(cell.values)
    cut = f"{text[: _LABEL_CHARACTERS - _NUMBER_CHARACTERS]}… ({number})"
    return html.escape(text if len(text) <= _LABEL_CHARACTERS else cut)
