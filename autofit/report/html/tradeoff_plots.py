"""Plots of one choice against another: workers against queue, and throughput against memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import AUTOTUNE, FitConfig, Trial, value_in_words
from autofit.records.units import format_rate
from autofit.report.html import style
from autofit.report.html.style import BLACK, BLUE, SKY, SOFT, VERMILION, Plot

_NO_QUEUE = "no queue"
_LIGHT = 0.55  # share of the highest rate: above it cells are light and take dark text


@dataclass(frozen=True)
class Alternative:
    """Another config to choose; memory and rate relative to the chosen one (0.2: a fifth more)."""

    trial: Trial
    memory_bytes: int
    memory_change: float | None
    rate_change: float | None


def workers_by_queue(log: TuneLog) -> list[Plot]:
    """The best rate of each number of workers and queue size: a map for threads, and one for processes."""
    title = "Workers × queue"
    tried = [t for t in log.trials if t.config.workers is not None or t.config.max_queue_size is not None]
    if not log.trials:
        return []
    if not tried:
        return [Plot("workers", title, "This input has neither workers nor a queue.")]
    if len({_cell(trial.config) for trial in tried}) == 1:
        return [Plot("workers", title, f"One setting was tried, {style.setting_in_words(tried[0].config)}.")]
    plots = []
    for kind in ("threads", "processes"):
        best = best_by_cell(tried, kind)
        if best:
            caption = f"Best rate of each setting with {kind}, at the batch size in brackets. An empty cell was not tried."
            plots.append(Plot(f"workers-{kind}", f"{title}: {kind}", caption, _map(best, max(map(_rate, tried)))))
    return plots


def best_by_cell(trials: Sequence[Trial], kind: str) -> dict[tuple[str, str], Trial]:
    """The fastest trial of each (workers, queue), with workers that are threads or processes."""
    best: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        kind_of_trial, workers, queue = _cell(trial.config)
        if kind_of_trial == kind and ((workers, queue) not in best or _rate(trial) > _rate(best[workers, queue])):
            best[workers, queue] = trial
    return best


def _map(best: dict[tuple[str, str], Trial], highest: float) -> Any:
    rows = sorted({workers for workers, _ in best}, key=_number)
    columns = sorted({queue for _, queue in best}, key=_number)
    grid = [[best.get((workers, queue)) for queue in columns] for workers in rows]
    rates = [[trial and trial.measurement.samples_per_second for trial in row] for row in grid]
    hover = [["not tried" if trial is None else style.trial_hover(trial) for trial in row] for row in grid]
    heat = {"type": "heatmap", "x": columns, "y": rows, "z": rates, "zmin": 0, "zmax": highest, "hovertext": hover}
    notes = []
    for (workers, queue), trial in best.items():
        note = {"x": columns.index(queue), "y": rows.index(workers), "text": _cell_text(trial)}
        notes.append({**note, "font": {"color": _text_color(_rate(trial), highest)}})
    return style.figure(
        [{**heat, "colorbar": {"title": {"text": "samples/s"}}}],
        height=style.height_of(2 * len(rows)),
        xaxis=style.category_axis("queue (batches)", columns, showgrid=False),
        yaxis=style.category_axis("workers", rows, showgrid=False),
        annotations=notes,
        plot_bgcolor=style.PANEL,
    )


def _cell(config: FitConfig) -> tuple[str, str, str]:
    """The kind of the workers, their number, and the queue, as the map labels them."""
    kind = "processes" if config.use_multiprocessing and config.has_queue else "threads"
    queue = config.queue_in_words or _NO_QUEUE
    return kind, "–" if config.workers is None else value_in_words(config.workers), queue


def _number(label: str) -> float:
    """The place of a label on its axis: no value, the numbers, and AUTOTUNE."""
    return math.inf if label == value_in_words(AUTOTUNE) else int(label) if label.isdigit() else -1


def _cell_text(trial: Trial) -> str:
    outcome, batch = trial.measurement.outcome, trial.config.batch_size
    size = f"<br>({batch:,})" if batch else ""
    if trial.measurement.samples_per_second is None:
        return f"✕ {'OOM' if outcome.is_oom else outcome.value}{size}"
    return f"{format_rate(_rate(trial))}{size}"


def _text_color(rate: float, highest: float) -> str:
    return SOFT if not rate else BLACK if rate >= _LIGHT * highest else "white"


def pareto(log: TuneLog) -> tuple[Plot, list[Alternative]]:
    """Throughput against the memory that governs, and the configs to choose instead."""
    name, title, device = "pareto", "Throughput against memory", governs_device(log)
    candidates = [t for t in log.trials if t.fits(log.limits) and _rate(t) and _bytes(t, device)]
    if not candidates:
        return Plot(name, title, "No trial within the limits has a reading of its memory."), []
    if len({trial.config for trial in candidates}) == 1:
        return Plot(name, title, "One configuration ran within the limits, so there is no other choice."), []
    chosen = _chosen_trial(log)
    best = pareto_set(candidates, device, chosen)
    unit, unit_bytes = style.memory_unit(max(_bytes(trial, device) for trial in candidates))

    def sizes(trials: Sequence[Trial]) -> list[float]:
        return [_bytes(trial, device) / unit_bytes for trial in trials]

    def marks(label: str, trials: Sequence[Trial], symbol: str, color: str) -> dict[str, Any]:
        return style.marks(label, sizes(trials), [*map(_rate, trials)], [*map(style.trial_hover, trials)], symbol, color)

    steps = {"color": BLUE, "dash": "dot", "width": 2, "shape": "hv"}
    traces = [
        style.line("", sizes(best), [*map(_rate, best)], BLUE, showlegend=False) | {"line": steps},
        marks("another is faster with less memory", [t for t in candidates if t not in best], "circle-open", SKY),
        marks("Pareto set", best, "diamond", BLUE),
        marks("chosen (its trial in the search)", [t for t in candidates if t is chosen], "star", VERMILION),
    ]
    memory = "device" if device else "host"
    caption = (
        f"No other trial is both faster and smaller in {memory} memory than a diamond. "
        "Rates are those of the search; only the chosen configuration was run again to confirm it."
    )
    x_axis = style.axis(f"peak of {memory} memory ({unit})", rangemode="normal")
    drawn = style.figure(traces, xaxis=x_axis, yaxis=style.axis("samples/s", tickformat=",~r"))
    return Plot(name, title, caption, drawn), [_alternative(trial, chosen, device) for trial in best]


def governs_device(log: TuneLog) -> bool:
    """Whether device memory is the scarce one: it has a limit, or trials have a reading of it."""
    return log.limits.device_bytes is not None or any(t.measurement.device_peak_bytes for t in log.trials)


def pareto_set(trials: Sequence[Trial], device: bool, chosen: Trial | None) -> list[Trial]:
    """The Pareto-optimal trials by ascending memory; the chosen one goes before its equals."""
    best: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (_bytes(t, device), -_rate(t), t is not chosen)):
        if not best or _rate(trial) > _rate(best[-1]):
            best.append(trial)
    return best


def _chosen_trial(log: TuneLog) -> Trial | None:
    """The chosen config's own trial in the search, comparable with the other trials."""
    if not isinstance(log, TuneRecord):
        return None
    return next((t for t in log.trials if t.config == log.config and t.measurement.outcome is Outcome.OK), None)


def _alternative(trial: Trial, chosen: Trial | None, device: bool) -> Alternative:
    size, rate = _bytes(trial, device), _rate(trial)
    if chosen is None or not _bytes(chosen, device) or not _rate(chosen):
        return Alternative(trial, size, None, None)
    return Alternative(trial, size, size / _bytes(chosen, device) - 1, rate / _rate(chosen) - 1)


def _bytes(trial: Trial, device: bool) -> int:
    m = trial.measurement
    return (m.device_peak_bytes if device else m.host_peak_bytes) or 0


def _rate(trial: Trial) -> float:
    return trial.measurement.samples_per_second or 0.0
