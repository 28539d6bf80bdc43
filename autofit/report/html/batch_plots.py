"""Plots against the batch size: throughput with its ceilings, memory with its bound and limit, the feasible frontier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from autofit.records.result import FrontierPoint, TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import format_rate
from autofit.report.html import curves, style
from autofit.report.html.curves import MemoryCurve, RateCurve
from autofit.report.html.style import BAND, BLUE, GREEN, ORANGE, PURPLE, SKY, SOFT, VERMILION, MemoryScale, Plot
from autofit.search.feasibility import frontier

NO_BATCH = "This input has no batch size to plot against."
NOTHING_RAN = "No trial was run."

_EDGE = 1.25  # space beside the smallest and the largest batch size, as a factor: markers at the border stay whole


def throughput(log: TuneLog) -> Plot:
    """Samples per second against the batch size, with the rates of the model alone and the input alone."""
    name, title = "throughput", "Throughput against batch size"
    setting, sizes = curves.best_known(log), curves.batch_range(log.trials)
    rated = [trial for trial in log.trials if _rate(trial) and trial.config.batch_size]
    if setting is None or sizes is None:
        return Plot(name, title, NO_BATCH if log.trials else NOTHING_RAN)
    if not rated:
        return Plot(name, title, "No trial finished, so there is no rate to plot.")
    curve, top = curves.rate_curve(log), highest_rate(log)
    same, others = _by_setting(rated, setting)
    failed = [trial for trial in log.trials if trial.measurement.outcome is not Outcome.OK]
    traces = [
        *_rate_lines(curve),
        *_alone_marks(same),
        _rate_marks("trials with other workers or queue", others, "circle-open", SKY),
        _rate_marks(f"trials{style.with_setting(setting)}", same, "circle", BLUE),
        *_chosen_mark(log),
        style.trial_marks("failed", failed, lambda trial: 0.0, "x", VERMILION),
    ]
    y_axis = style.axis("samples/s", range=[-0.04 * top, top], tickformat=",~r")
    drawn = style.figure(traces, xaxis=style.batch_axis(*_edges(sizes)), yaxis=y_axis)
    return Plot(name, title, _rate_caption(curve, setting, top), drawn)


def highest_rate(log: TuneLog) -> float:
    """The top of the rate axis: above every reached rate and every ceiling that is not far above."""
    measured = [trial.measurement for trial in log.trials if _rate(trial)]
    reached = max(m.samples_per_second or 0.0 for m in measured)
    ceilings = [rate or 0.0 for m in measured for rate in (m.compute_samples_per_second, m.input_samples_per_second)]
    final = log.samples_per_second if isinstance(log, TuneRecord) else 0.0
    return style.HEADROOM * max(reached, final, *(rate for rate in ceilings if rate <= style.FAR * reached))


def _rate_lines(curve: RateCurve | None) -> list[dict[str, Any]]:
    if curve is None:
        return []
    edge = {"line": {"width": 0}}
    return [
        style.line("", curve.batches, curve.high, BLUE, showlegend=False) | edge,
        style.line("95 % interval", curve.batches, curve.low, BLUE, fill="tonexty", fillcolor=BAND) | edge,
        style.line("predicted", curve.batches, curve.expected, BLUE),
        style.line("model alone", curve.batches, curve.compute, ORANGE, "dash"),
        style.line("input alone", curve.batches, curve.inputs, GREEN, "dot"),
    ]


def _alone_marks(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    traces = []
    for name, field, symbol, color in (
        ("model alone, measured", "compute_samples_per_second", "triangle-up-open", ORANGE),
        ("input alone, measured", "input_samples_per_second", "square-open", GREEN),
    ):
        rate = attrgetter(f"measurement.{field}")
        traces.append(style.trial_marks(name, [*filter(rate, trials)], rate, symbol, color, showlegend=False))
    return traces


def _rate_marks(name: str, trials: Sequence[Trial], symbol: str, color: str) -> dict[str, Any]:
    spreads = [_rate(trial) * (trial.measurement.spread or 0.0) for trial in trials]
    error_bars = {"type": "data", "array": spreads, "color": color, "thickness": 1.2, "width": 3}
    return style.trial_marks(name, trials, _rate, symbol, color, error_y=error_bars)


def _chosen_mark(log: TuneLog) -> list[dict[str, Any]]:
    if not isinstance(log, TuneRecord):
        return []
    hover = style.hover(f"confirmed: {log.config}", [f"{format_rate(log.samples_per_second)} samples/s"])
    return [style.marks("chosen, confirmed", [log.config.batch_size], [log.samples_per_second], [hover], "star", VERMILION)]


def _rate_caption(curve: RateCurve | None, setting: FitConfig, top: float) -> str:
    if curve is None:
        return "Points are measured. A curve needs at least two batch sizes that ran."
    sentences = [
        f"Lines are predicted by the fitted model{style.with_setting(setting)}, points are measured. "
        "The lower of the two ceilings, model alone and input alone, bounds the rate of the fit."
    ]
    for part, ceiling in (("model alone", curve.compute), ("input alone", curve.inputs)):
        if min(ceiling) > top:
            sentences.append(f"The {part} reaches {format_rate(min(ceiling))} samples/s or more, above the plot.")
    return " ".join(sentences)


def memory(log: TuneLog, which: str) -> Plot | None:
    """Memory of "device" or "host" against the batch size: readings, prediction, bound and limit; None without a device."""
    name, title = f"memory-{which}", f"{which.capitalize()} memory against batch size"
    limit = log.limits.device_bytes if which == "device" else log.limits.host_bytes
    setting, sizes = curves.best_known(log), curves.batch_range(log.trials)
    read = [t for t in log.trials if t.measurement.outcome is Outcome.OK and _peak(t, which) is not None]
    if which == "device" and limit is None and not read:
        return None
    if setting is None or sizes is None:
        return Plot(name, title, NO_BATCH if log.trials else NOTHING_RAN)
    out_of_memory = Outcome.DEVICE_OOM if which == "device" else Outcome.HOST_OOM
    ooms = [trial for trial in log.trials if trial.measurement.outcome is out_of_memory]
    curve = curves.memory_curve(log, which)
    if curve is None and not read and not ooms:
        return Plot(name, title, f"No trial has a reading of {which} memory.")
    scale = memory_scale([_reading_bytes(trial, which, limit) for trial in (*read, *ooms)], curve, sizes[1], limit)
    same, others = _by_setting(read, setting)

    def height(trial: Trial) -> float:
        return _reading_bytes(trial, which, limit) / scale.unit_bytes

    traces = [
        *_memory_lines(curve, scale),
        style.trial_marks("trials with other workers or queue", others, height, "circle-open", SKY),
        style.trial_marks(f"trials{style.with_setting(setting)}", same, height, "circle", BLUE),
        style.trial_marks("out of memory", ooms, height, "x", VERMILION),
        scale.limit_line(_edges(sizes)),
    ]
    sentences = [f"Drawn for configurations{style.with_setting(setting)}."] if style.with_setting(setting) else []
    sentences.append(scale.sentence())
    if curve is not None:
        sentences.append("Memory stays below the bound with 99 % probability.")
        if scale.is_limit_drawn:
            sentences.append("The search tries a batch whose bound exceeds the limit only as a last resort.")
    x_axis, y_axis = style.batch_axis(*_edges(sizes)), scale.axis(f"{which} memory")
    return Plot(name, title, " ".join(sentences), style.figure(traces, xaxis=x_axis, yaxis=y_axis))


def memory_scale(
    readings_bytes: Iterable[float], curve: MemoryCurve | None, largest_batch: int, limit_bytes: int | None
) -> MemoryScale:
    """The memory axis: it shows all readings, the prediction where trials ran, and the whole bound if that is near."""
    highest = max(readings_bytes, default=0.0)
    if curve is None:
        return MemoryScale.of(highest, limit_bytes)
    last = max(largest_batch, curve.batches[0])
    expected = max(size for batch, size in zip(curve.batches, curve.expected, strict=True) if batch <= last)
    highest = max(highest, expected if limit_bytes is None else min(expected, style.FAR * limit_bytes))
    return MemoryScale.of(highest, limit_bytes, wanted_bytes=max(curve.upper))


def _memory_lines(curve: MemoryCurve | None, scale: MemoryScale) -> list[dict[str, Any]]:
    if curve is None:
        return []
    expected, upper = ([size / scale.unit_bytes for size in sizes] for sizes in (curve.expected, curve.upper))
    bound = style.line("99 % bound", curve.batches, upper, BLUE, fill="tonexty", fillcolor=BAND)
    bound["line"] = {"width": 1, "color": BLUE, "dash": "dot"}
    return [style.line("predicted", curve.batches, expected, BLUE), bound]


def feasible(log: TuneLog) -> Plot:
    """The largest batch that fitted and the smallest that did not, for each setting of the other knobs."""
    name, title = "frontier", "Feasible frontier"
    sizes = curves.batch_range(log.trials)
    if sizes is None:
        return Plot(name, title, NO_BATCH if log.trials else NOTHING_RAN)
    points = sorted(log.frontier if isinstance(log, TuneRecord) else frontier(log.trials, log.limits), key=_row_order)
    tried = (replace(trial.config, batch_size=None) for trial in log.trials)  # a file may lack the point of one
    labels = {setting: style.setting_in_words(setting) for setting in (*(point.config for point in points), *tried)}
    fitting = [trial for trial in log.trials if trial.fits(log.limits)]
    ooms = [trial for trial in log.trials if trial.measurement.outcome.is_oom]
    failed = [trial for trial in log.trials if trial not in fitting and trial not in ooms]

    def row(trial: Trial) -> str:
        return labels[replace(trial.config, batch_size=None)]

    start, end = _edges(sizes)
    fits = [(labels[p.config], start, p.largest_batch_size) for p in points]
    gaps = [(labels[p.config], p.largest_batch_size, p.smallest_oom_batch_size) for p in points]
    traces = [
        _segments("fits", fits, SKY) | {"line": {"color": SKY, "width": 9}},
        _segments("not known", gaps, SOFT, "dot"),
        style.trial_marks("tried, fits", fitting, row, "circle", BLUE),
        style.trial_marks("timeout, crash or error", failed, row, "diamond-open", PURPLE),
        *_predicted_marks(log, labels, curves.grid(*sizes)[-1]),
        style.trial_marks("out of memory", ooms, row, "x", VERMILION),
    ]
    caption = "Bars reach to the largest batch that fitted. "
    caption += "Crosses are batches that ran out of memory." if ooms else "No trial ran out of memory."
    x_axis, y_axis = style.batch_axis(start, end), style.row_axis(list(labels.values()))
    drawn = style.figure(traces, style.height_of(len(labels)), xaxis=x_axis, yaxis=y_axis)
    return Plot(name, title, caption, drawn)


def _row_order(point: FrontierPoint) -> tuple[bool, int, int]:
    config = point.config
    return bool(config.use_multiprocessing), config.workers or 0, config.queue_batches


def _segments(
    name: str, spans: Iterable[tuple[str, float | None, float | None]], color: str, dash: str = "solid"
) -> dict[str, Any]:
    """A horizontal line in each row that has both ends."""
    x: list[float | None] = []
    y: list[str | None] = []
    for row, start, end in spans:
        if start is not None and end is not None:
            x += [start, end, None]
            y += [row, row, None]
    return style.line(name, x, y, color, dash)


def _predicted_marks(log: TuneLog, labels: dict[FitConfig, str], last: int) -> list[dict[str, Any]]:
    """A mark at the largest batch that is predicted to fit; an arrow where the last one drawn does."""
    largest = {label: curves.largest_predicted(log, setting) or 0 for setting, label in labels.items()}
    traces = []
    for name, symbol, rows in (
        ("predicted to fit up to here", "line-ns", {row: size for row, size in largest.items() if 0 < size < last}),
        ("predicted to fit, and beyond", "triangle-right", {row: size for row, size in largest.items() if size >= last}),
    ):
        hover = [style.hover(name, [row]) for row in rows]
        traces.append(style.marks(name, list(rows.values()), list(rows), hover, symbol, GREEN))
    return traces


def _by_setting(trials: Sequence[Trial], setting: FitConfig) -> tuple[list[Trial], list[Trial]]:
    """Trials that differ from a setting in the batch size at most, and the others."""
    same = [trial for trial in trials if curves.same_setting(trial.config, setting)]
    return same, [trial for trial in trials if trial not in same]


def _rate(trial: Trial) -> float:
    return trial.measurement.samples_per_second or 0.0


def _peak(trial: Trial, which: str) -> int | None:
    return trial.measurement.device_peak_bytes if which == "device" else trial.measurement.host_peak_bytes


def _reading_bytes(trial: Trial, which: str, limit_bytes: int | None) -> int:
    """The peak; of a trial that ran out of memory the highest reading, but no less than the limit."""
    peak = _peak(trial, which) or 0
    if trial.measurement.outcome is Outcome.OK:
        return peak
    last = trial.measurement.evidence.last_host_bytes if which == "host" else None
    return max(peak, last or 0, limit_bytes or 0)


def _edges(sizes: tuple[int, int]) -> tuple[float, float]:
    batches = curves.grid(*sizes)
    return batches[0] / _EDGE, batches[-1] * _EDGE
