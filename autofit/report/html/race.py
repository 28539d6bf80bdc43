"""The plot of a race: the loss on held-out samples over the seconds of training."""

from __future__ import annotations

from autofit.records.race import Heat
from autofit.records.result import TuneRecord
from autofit.records.units import counted
from autofit.report.choice import raced_in_words
from autofit.report.html import style
from autofit.report.html.style import BLUE, GREEN, VERMILION, Plot

_COLORS = (BLUE, VERMILION, GREEN)  # of the baseline and of the others


def race(record: TuneRecord) -> Plot | None:
    """Plot the curves of a race; return None if nothing was raced.

    The plot answers "which batch size reaches the same loss first, and do the seeds agree?".
    """
    raced, baseline = record.race, record.speedup.baseline
    if raced is None or not raced.heats:
        return None
    configs = (baseline, *(contestant.config for contestant in raced.contestants))
    traces = []
    for config, color in zip(configs, _COLORS, strict=False):
        name = f"batch {config.batch_size:,}" + (" (baseline)" if config == baseline else "")
        heats = [heat for heat in raced.heats if heat.config == config and heat.points]
        for heat in heats:
            line = {"mode": "lines+markers", "line": {"color": color, "width": 1.5}, "showlegend": heat is heats[0]}
            x, y, hover = _points(heat)
            traces.append(style.marks(name, x, y, hover, "circle", color, legendgroup=name, **line))
    seconds = {"title": "seconds of training", "rangemode": "tozero"}
    drawn = style.figure(traces, xaxis=seconds, yaxis={"title": "loss on validation data", "rangemode": "normal"})
    words = "; ".join(raced_in_words(contestant, baseline.batch_size or 1) for contestant in raced.contestants)
    caption = (
        f"Each line is a training from the weights after {counted(raced.updates, 'update')}, with the learning rate that "
        f"the noise scale gives its batch size; the weights are averaged over time. {words[:1].upper()}{words[1:]}. "
        "The final accuracy, and other schedules, may differ."
    )
    return Plot("race", "Which batch size reaches the same loss first", caption, drawn)


def _points(heat: Heat) -> tuple[list[float], list[float], list[str]]:
    known = [(point.seconds, point.loss, point.updates) for point in heat.points if point.loss is not None]
    hover = [
        style.hover(str(heat.config), [f"pair {heat.pair}, {counted(updates, 'update')}", f"loss {loss:.4g}"])
        for _, loss, updates in known
    ]
    return [seconds for seconds, _, _ in known], [loss for _, loss, _ in known], hover
