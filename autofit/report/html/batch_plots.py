"""Plots against the batch size: throughput with its ceilings, memory with its bound and limit, the feasible frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autofit.records.result import FrontierPoint, TuneLog, TuneRecord
from autofit.records.trial import FitConfig, Outcome, Trial
from autofit.records.units import format_bytes, format_rate
from autofit.report.html import curves, style
from autofit.report.html.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, SOFT, VERMILION, Plot
from autofit.search.frontier import frontier

NO_BATCH = "The batch size is no knob of this input: there is nothing to draw it against."
NOTHING_RAN = "No trial was run: there is nothing to draw."

_FAR_LIMIT = 3.0  # times the highest reading: a limit beyond that is said, not drawn, or it would flatten all else
_ROOM = 1.12  # of the highest thing drawn: space above it
_BAND = "rgba(0, 114, 178, 0.14)"
_EDGE = 1.25  # times the smallest and the largest batch size: markers at the border stay whole


def throughput(seen: TuneLog) -> Plot:
    """Samples per second against the batch, with what the step alone and the input alone could do."""
    title, at, there = "Throughput against batch size", curves.best_known(seen), curves.batch_range(seen.trials)
    if at is None or there is None:
        return Plot("throughput", title, NOTHING_RAN if at is None else NO_BATCH)
    ran = [t for t in seen.trials if t.measurement.samples_per_second]
    if not ran:
        return Plot("throughput", title, "No trial ran to its end: no rate is known.")
    curve = curves.rate_curve(seen)
    traces: list[dict[str, Any]] = []
    if curve is not None:
        band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "type": "scatter", "x": curve.batches}
        traces = [
            {**band, "y": curve.high, "showlegend": False},
            {**band, "y": curve.low, "fill": "tonexty", "fillcolor": _BAND, "name": "95 % of it"},
            style.line("predicted", curve.batches, curve.expected, BLUE),
            style.line("model alone", curve.batches, curve.compute, ORANGE, "dash"),
            style.line("input alone", curve.batches, curve.inputs, GREEN, "dot"),
        ]
    here = [t for t in ran if curves.same_setting(t.config, at)]
    elsewhere = [t for t in ran if t not in here]
    traces += _alone("model alone, measured", here, "compute_samples_per_second", ORANGE, "triangle-up-open")
    traces += _alone("input alone, measured", here, "input_samples_per_second", GREEN, "square-open")
    setting = style.with_setting(at)
    traces += _rates("trials with other workers or queue", elsewhere, SKY, "circle-open")
    traces += _rates(f"trials{setting}", here, BLUE, "circle")
    if isinstance(seen, TuneRecord) and seen.config.batch_size:
        told = style.hover(f"confirmed: {seen.config}", [f"{format_rate(seen.samples_per_second)} samples/s"])
        chosen = style.marks(
            "chosen, confirmed", [seen.config.batch_size], [seen.samples_per_second], [told], symbol="star", color=VERMILION
        )
        chosen["marker"] |= {"size": 18, "line": {"width": 1, "color": BLACK}}
        traces.append(chosen)
    failed = [t for t in seen.trials if t.measurement.outcome is not Outcome.OK and t.config.batch_size]
    traces += _failures("did not run to its end", failed, [0.0] * len(failed))
    highest = _highest_rate(seen, ran)
    x = style.batch_axis(*_ends(there))
    y = style.axis("samples/s", range=[-0.04 * highest, highest], tickformat=",~r")
    caption = f"Lines are what the fitted model expects{setting}; the fit can be no faster than the lower of its two "
    caption += "ceilings, the model alone and the input alone. Points are measured."
    if curve is None:
        caption = "Points are measured. Too few batch sizes ran for a curve between them."
    else:
        for does, ceiling in (("model alone takes", curve.compute), ("input alone makes", curve.inputs)):
            if min(ceiling) > highest:
                caption += f" The {does} {format_rate(min(ceiling))} samples/s and more: above what is drawn."
    return Plot("throughput", title, caption, style.figure(traces, xaxis=x, yaxis=y))


def memory(seen: TuneLog, which: str) -> Plot | None:
    """Memory of "device" or "host" against the batch: readings, prediction, bound and limit; None where there is none."""
    name, title = f"memory-{which}", f"{which.capitalize()} memory against batch size"
    limit = seen.limits.device_bytes if which == "device" else seen.limits.host_bytes
    there, at = curves.batch_range(seen.trials), curves.best_known(seen)
    read = [t for t in seen.trials if t.measurement.outcome is Outcome.OK and _peak(t, which) is not None]
    if which == "device" and limit is None and not read:
        return None
    if there is None or at is None:
        return Plot(name, title, NOTHING_RAN if at is None else NO_BATCH)
    out = Outcome.DEVICE_OOM if which == "device" else Outcome.HOST_OOM
    full = [t for t in seen.trials if t.measurement.outcome is out and t.config.batch_size]
    reached = [float(max(_peak(t, which) or 0, t.measurement.evidence.last_host_bytes or 0 if which == "host" else 0,
                         limit or 0)) for t in full]  # fmt: skip
    curve = curves.memory_curve(seen, which)
    if curve is None and not read and not full:
        return Plot(name, title, f"No trial's peak of {which} memory is known.")
    highest = max([float(_peak(t, which) or 0) for t in read] + reached, default=0.0)
    if curve is not None:
        foreseen = max(
            e for size, e in zip(curve.batches, curve.expected, strict=True) if size <= max(there[1], curve.batches[0])
        )
        highest = max(highest, min(foreseen, _FAR_LIMIT * (limit or foreseen)))
    far = limit is not None and limit > _FAR_LIMIT * highest
    unit, unit_bytes = _unit(highest)
    traces: list[dict[str, Any]] = []
    if curve is not None:
        highest = max(highest, min(_FAR_LIMIT * highest, max(curve.upper)) if far or limit is None else highest)
        edge = {"type": "scatter", "mode": "lines", "x": curve.batches, "hoverinfo": "skip"}
        expected, upper = ([v / unit_bytes for v in values] for values in (curve.expected, curve.upper))
        traces += [
            style.line("predicted", curve.batches, expected, BLUE),
            {**edge, "y": upper, "name": "99 % bound", "line": {"width": 1, "color": BLUE, "dash": "dot"},
             "fill": "tonexty", "fillcolor": _BAND},
        ]  # fmt: skip
    here = [t for t in read if curves.same_setting(t.config, at)]
    for label, some, color, symbol in (
        ("trials with other workers or queue", [t for t in read if t not in here], SKY, "circle-open"),
        (f"trials{style.with_setting(at)}", here, BLUE, "circle"),
    ):
        if some:
            y = [(_peak(t, which) or 0) / unit_bytes for t in some]
            hover = [style.trial_hover(t) for t in some]
            traces.append(style.marks(label, _sizes(some), y, hover, symbol=symbol, color=color))
    traces += _failures("out of memory", full, [value / unit_bytes for value in reached])
    ends = _ends(there)
    top = _ROOM * max(highest, 0.0 if far or limit is None else float(limit)) / unit_bytes
    caption = f"Drawn for configurations{style.with_setting(at)}. " if style.with_setting(at) else ""
    if limit is None:
        caption += "No limit of its own."
    elif far:
        caption += f"The limit, {format_bytes(limit)}, is far above and not drawn."
    else:
        traces.append(style.line(f"limit {format_bytes(limit)}", ends, [limit / unit_bytes] * 2, VERMILION, "longdash"))
        caption += f"The limit is {format_bytes(limit)}."
    if curve is not None:
        if limit is not None and not far:
            caption += " A batch whose bound is above the limit is tried only where nothing else is left."
        caption += " The bound holds with 99 % probability."
    x = style.batch_axis(*ends)
    y_axis = style.axis(f"{which} memory ({unit})", range=[0, top])
    return Plot(name, title, caption, style.figure(traces, xaxis=x, yaxis=y_axis))


def feasible(seen: TuneLog) -> Plot:
    """For each setting of the other knobs the largest batch that fitted, and the smallest that did not."""
    title, there = "Feasible frontier", curves.batch_range(seen.trials)
    if there is None:
        return Plot("frontier", title, NO_BATCH if seen.trials else NOTHING_RAN)
    points = seen.frontier if isinstance(seen, TuneRecord) else frontier(seen.trials, seen.limits)
    points = tuple(sorted(points, key=lambda p: (bool(p.config.use_multiprocessing), p.config.workers or 0,
                                                 p.config.max_queue_size or 0)))  # fmt: skip
    labels = {point.config: style.setting_in_words(point.config) for point in points}
    ends = _ends(there)
    fits, gap = _fitting_bars(points, labels, ends[0]), _gap_bars(points, labels)
    traces = [trace for trace in (fits, gap) if trace["x"]]
    tried = [t for t in seen.trials if t.config.batch_size]
    within = [t for t in tried if t.fits(seen.limits)]
    beyond = [t for t in tried if t.measurement.outcome.is_oom]
    others = [t for t in tried if t not in within and t not in beyond]
    for name, some, color, symbol in (
        ("tried, fits", within, BLUE, "circle"), ("neither: timeout, crash", others, PURPLE, "diamond-open"),
    ):  # fmt: skip
        if some:
            rows, told = [labels[_others(t)] for t in some], [style.trial_hover(t) for t in some]
            traces.append(style.marks(name, _sizes(some), rows, told, symbol=symbol, color=color))
    traces += _predicted_frontier(seen, points, labels, curves.grid(*there)[-1])
    traces += _failures("out of memory", beyond, [labels[_others(t)] for t in beyond])
    caption = "Bars reach to the largest batch that fitted. "
    if beyond:
        caption += (
            "A cross is a batch that ran out of memory (why is in its text); between the two nothing is known for sure."
        )
    else:
        caption += "No trial ran out of memory."
    height = style.height_of(len(labels))
    axes = {"xaxis": style.batch_axis(*ends), "yaxis": style.row_axis(list(labels.values()))}
    return Plot("frontier", title, caption, style.figure(traces, height=height, **axes))


def _fitting_bars(points: Sequence[FrontierPoint], labels: dict[FitConfig, str], start: float) -> dict[str, Any]:
    x, y = [], []
    for point in points:
        if point.largest_batch_size is not None:
            x += [start, point.largest_batch_size, None]
            y += [labels[point.config]] * 2 + [None]
    return style.line("fits", x, y, SKY) | {"line": {"color": SKY, "width": 9}}


def _gap_bars(points: Sequence[FrontierPoint], labels: dict[FitConfig, str]) -> dict[str, Any]:
    x, y = [], []
    for point in points:
        if point.largest_batch_size is not None and point.smallest_oom_batch_size is not None:
            x += [point.largest_batch_size, point.smallest_oom_batch_size, None]
            y += [labels[point.config]] * 2 + [None]
    return style.line("not known", x, y, SOFT, "dot")


def _predicted_frontier(
    seen: TuneLog, points: Sequence[FrontierPoint], labels: dict[FitConfig, str], last: int
) -> list[dict[str, Any]]:
    """A mark at the largest batch that is predicted to fit; an arrow at the last one drawn where that fits, too."""
    found = [(labels[p.config], curves.largest_predicted(seen, p.config)) for p in points]
    traces = []
    for name, symbol, some in (
        ("predicted to fit up to here", "line-ns", [(row, size) for row, size in found if size and size < last]),
        ("predicted to fit, and beyond", "triangle-right", [(row, size) for row, size in found if size and size >= last]),
    ):
        if some:
            told = [style.hover(name, [row]) for row, _ in some]
            trace = style.marks(name, [x for _, x in some], [row for row, _ in some], told, symbol=symbol, color=GREEN)
            trace["marker"] |= {"size": 14 if symbol == "line-ns" else 11}
            traces.append(trace)
    return traces


def _alone(name: str, trials: Sequence[Trial], field: str, color: str, symbol: str) -> list[dict[str, Any]]:
    known = [t for t in trials if getattr(t.measurement, field) and t.config.batch_size]
    if not known:
        return []
    y = [getattr(t.measurement, field) for t in known]
    trace = style.marks(name, _sizes(known), y, [style.trial_hover(t) for t in known], symbol=symbol, color=color)
    return [trace | {"showlegend": False}]


def _rates(name: str, trials: Sequence[Trial], color: str, symbol: str) -> list[dict[str, Any]]:
    some = [t for t in trials if t.config.batch_size]
    if not some:
        return []
    y = [t.measurement.samples_per_second or 0.0 for t in some]
    trace = style.marks(name, _sizes(some), y, [style.trial_hover(t) for t in some], symbol=symbol, color=color)
    spreads = [rate * (t.measurement.spread or 0.0) for rate, t in zip(y, some, strict=True)]
    return [trace | {"error_y": {"type": "data", "array": spreads, "color": color, "thickness": 1.2, "width": 3}}]


def _failures(name: str, trials: Sequence[Trial], y: Sequence[Any]) -> list[dict[str, Any]]:
    """Crosses, with the evidence in their text."""
    if not trials:
        return []
    told = [style.trial_hover(t) for t in trials]
    trace = style.marks(name, _sizes(trials), y, told, symbol="x", color=VERMILION)
    trace["marker"] |= {"size": 12, "line": {"width": 1, "color": BLACK}}
    return [trace | {"cliponaxis": False}]


def _highest_rate(seen: TuneLog, ran: Sequence[Trial]) -> float:
    """The top of the plot: above what was reached and the lower ceiling; a ceiling far above is cut off."""
    reached = max(t.measurement.samples_per_second or 0.0 for t in ran)
    alone = [t.measurement.compute_samples_per_second or 0.0 for t in ran]
    alone += [t.measurement.input_samples_per_second or 0.0 for t in ran]
    final = seen.samples_per_second if isinstance(seen, TuneRecord) else 0.0
    return _ROOM * max(reached, final, *(rate for rate in alone if rate <= _FAR_LIMIT * reached), 0.0)


def _peak(trial: Trial, which: str) -> int | None:
    return trial.measurement.device_peak_bytes if which == "device" else trial.measurement.host_peak_bytes


def _sizes(trials: Sequence[Trial]) -> list[int]:
    return [t.config.batch_size or 1 for t in trials]


def _others(trial: Trial) -> FitConfig:
    return replace(trial.config, batch_size=None)


def _ends(there: tuple[int, int]) -> tuple[float, float]:
    batches = curves.grid(*there)
    return batches[0] / _EDGE, batches[-1] * _EDGE


def _unit(highest: float) -> tuple[str, float]:
    """The unit in which bytes stand on an axis, and how many of them it is."""
    return ("GiB", 2.0**30) if highest >= 2.0**30 else ("MiB", 2.0**20)
