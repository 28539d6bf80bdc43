"""Plots of one choice against another: workers against queue, and throughput against memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autofit.records.result import TuneLog, TuneRecord
from autofit.records.trial import FitConfig, Outcome, Trial
from autofit.records.units import format_rate
from autofit.report.html import style
from autofit.report.html.style import BLACK, BLUE, SKY, SOFT, VERMILION, Plot

_NO_QUEUE = "no queue"
_LIGHT = 0.55  # of the way from the lowest to the highest rate: above it cells are light and their text is dark


@dataclass(frozen=True)
class Alternative:
    """Another config that might be chosen; memory and rate relative to the chosen one (0.2: a fifth more)."""

    trial: Trial
    memory_bytes: int
    memory_change: float | None
    rate_change: float | None


def workers_by_queue(seen: TuneLog) -> list[Plot]:
    """The best rate of each number of workers and queue size: a map for threads, and one for processes."""
    title = "Workers × queue"
    tried = [t for t in seen.trials if t.config.workers is not None or t.config.max_queue_size is not None]
    if not seen.trials:
        return []
    if not tried:
        return [Plot("workers", title, "Neither workers nor a queue are knobs of this input.")]
    if len({_cell(t.config) for t in tried}) == 1:
        return [Plot("workers", title, f"One setting was tried, {style.setting_in_words(tried[0].config)}.")]
    rates = [t.measurement.samples_per_second or 0.0 for t in tried]
    plots = []
    for kind in ("threads", "processes"):
        some = [t for t in tried if _cell(t.config)[0] == kind]
        if some:
            caption = f"Best rate of each setting with {kind}, whatever its batch size (in brackets)."
            caption += " An empty cell was not tried."
            plots.append(Plot(f"workers-{kind}", f"{title}: {kind}", caption, _map(some, max(rates))))
    return plots


def pareto(seen: TuneLog) -> tuple[Plot, list[Alternative]]:
    """Throughput against the memory that governs, and what might be chosen instead."""
    title, device = "Throughput against memory", governs_device(seen)
    known = [t for t in seen.trials if t.fits(seen.limits) and t.measurement.samples_per_second and _bytes(t, device)]
    if not known:
        return Plot(
            "pareto", title, "No trial ran within the limits with its memory read: there is nothing to compare."
        ), []
    memory = "device" if device else "host"
    chosen = next((t for t in known if isinstance(seen, TuneRecord) and t.config == seen.config), None)
    best = _pareto_set(known, device, chosen)
    alternatives = [_alternative(seen, t, device) for t in best]
    if len({t.config for t in known}) == 1:
        return Plot("pareto", title, "One configuration ran within the limits: there is nothing to choose between."), []
    gib = max(_bytes(t, device) for t in known) >= 2**30
    unit, unit_bytes = ("GiB", 2.0**30) if gib else ("MiB", 2.0**20)
    rest = [t for t in known if t not in best]
    traces: list[dict[str, Any]] = [
        style.line("", [_bytes(t, device) / unit_bytes for t in best], _rates(best), BLUE, "dot",
                     showlegend=False) | {"line": {"color": BLUE, "dash": "dot", "width": 2, "shape": "hv"}}
    ]  # fmt: skip
    for name, some, color, symbol in (
        ("another is faster with less memory", rest, SKY, "circle-open"), ("Pareto set", best, BLUE, "diamond"),
    ):  # fmt: skip
        if some:
            x, told = [_bytes(t, device) / unit_bytes for t in some], [style.trial_hover(t) for t in some]
            traces.append(style.marks(name, x, _rates(some), told, symbol=symbol, color=color))
    if chosen is not None:
        x, told = (
            [_bytes(chosen, device) / unit_bytes],
            [style.trial_hover(chosen, "chosen; this is its trial in the search")],
        )
        star = style.marks("chosen (its trial in the search)", x, _rates([chosen]), told, symbol="star", color=VERMILION)
        star["marker"] |= {"size": 18, "line": {"width": 1, "color": BLACK}}
        traces.append(star)
    caption = f"Of the diamonds none has another beside it that is both faster and smaller in {memory} memory: each is a "
    caption += "sensible choice. Rates are those of the search; only the chosen config was run again to confirm it."
    axes: dict[str, Any] = {
        "xaxis": style.axis(f"peak of {memory} memory ({unit})", rangemode="normal"),
        "yaxis": style.axis("samples/s", tickformat=",~r"),
    }
    return Plot("pareto", title, caption, style.figure(traces, **axes)), alternatives


def governs_device(seen: TuneLog) -> bool:
    """Whether device memory is what runs short: where it has a limit, or trials read a peak of it."""
    return seen.limits.device_bytes is not None or any(t.measurement.device_peak_bytes for t in seen.trials)


def _map(trials: Sequence[Trial], highest: float) -> Any:
    best: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        _, workers, queue = _cell(trial.config)
        held = best.get((workers, queue))
        if held is None or (trial.measurement.samples_per_second or 0.0) > (held.measurement.samples_per_second or 0.0):
            best[workers, queue] = trial
    rows = sorted({workers for workers, _ in best}, key=_number)
    columns = sorted({queue for _, queue in best}, key=_number)
    z = [[_rate_of(best.get((w, q))) for q in columns] for w in rows]
    heat = {
        "type": "heatmap", "x": columns, "y": rows, "z": z, "zmin": 0, "zmax": highest, "colorscale": "Cividis",
        "xgap": 4, "ygap": 4, "hoverinfo": "text",
        "hovertext": [[_told(best.get((w, q))) for q in columns] for w in rows],
        "colorbar": {"title": {"text": "samples/s", "side": "right"}, "thickness": 12, "outlinewidth": 0,
                     "tickformat": ",~r"},
    }  # fmt: skip
    notes = [
        {"x": column, "y": row, "text": _text(best.get((w, q))), "showarrow": False, "font": {
            "size": 13, "color": "white" if (w, q) in best and 0 < (_rate_of(best[w, q]) or 0) < _LIGHT * highest
            else BLACK if (w, q) in best and _rate_of(best[w, q]) else SOFT}}
        for row, w in enumerate(rows) for column, q in enumerate(columns)
    ]  # fmt: skip
    plain = {"type": "category", "showgrid": False, "rangemode": "normal", "ticks": ""}
    return style.figure(
        [heat],
        height=style.height_of(2 * len(rows)),
        xaxis=style.axis("queue (max_queue_size)", **plain, categoryorder="array", categoryarray=columns),
        yaxis=style.axis("workers", **plain, categoryorder="array", categoryarray=rows),
        annotations=notes,
        plot_bgcolor=style.PANEL,
    )


def _cell(config: FitConfig) -> tuple[str, str, str]:
    """What the workers are, how many, and the queue, as the map names them."""
    kind = "processes" if config.use_multiprocessing and config.has_queue else "threads"
    queue = _NO_QUEUE if not config.has_queue or config.max_queue_size is None else str(config.max_queue_size)
    return kind, "–" if config.workers is None else str(config.workers), queue


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def _rate_of(trial: Trial | None) -> float | None:
    return trial.measurement.samples_per_second if trial else None


def _text(trial: Trial | None) -> str:
    if trial is None:
        return ""
    rate, batch = trial.measurement.samples_per_second, trial.config.batch_size
    size = f"<br>({batch:,})" if batch else ""
    if rate is None:
        return f"✕ {'OOM' if trial.measurement.outcome.is_oom else trial.measurement.outcome.value}{size}"
    return f"{format_rate(rate)}{size}"


def _told(trial: Trial | None) -> str:
    return "not tried" if trial is None else style.trial_hover(trial)


def _bytes(trial: Trial, device: bool) -> int:
    m = trial.measurement
    return (m.device_peak_bytes if device else m.host_peak_bytes) or 0


def _rates(trials: Sequence[Trial]) -> list[float]:
    return [t.measurement.samples_per_second or 0.0 for t in trials]


def _pareto_set(trials: Sequence[Trial], device: bool, chosen: Trial | None) -> list[Trial]:
    """Trials than which no other is both faster and smaller, by ascending memory; of equals the chosen one."""
    best: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (_bytes(t, device), -_rates([t])[0], t is not chosen)):
        if not best or _rates([trial])[0] > _rates(best)[-1]:
            best.append(trial)
    return best


def _alternative(seen: TuneLog, trial: Trial, device: bool) -> Alternative:
    """A trial against the chosen config's own trial in the search, so that like is compared with like."""
    chosen = next(
        (t for t in seen.trials if isinstance(seen, TuneRecord) and t.config == seen.config
         and t.measurement.outcome is Outcome.OK), None,
    )  # fmt: skip
    size, rate = _bytes(trial, device), _rates([trial])[0]
    if chosen is None or not _bytes(chosen, device) or not _rates([chosen])[0]:
        return Alternative(trial, size, None, None)
    return Alternative(trial, size, size / _bytes(chosen, device) - 1, rate / _rates([chosen])[0] - 1)
