"""The HTML report: one file that holds all it needs, and the few lines that a notebook shows."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.result import FailedTune, SweepRecord, TuneLog, TuneRecord
from autofit.report import snippet
from autofit.report.html import batch_plots, content, sweep_cells, timeline, tradeoff_plots, trial_table
from autofit.report.html.style import Plot

_PAGES = Path(__file__).parent / "templates"
_WIDE = ("throughput", "pareto", "timeline", "phases")
_COMPACT = ("#", "stage", "batch", "workers", "queue", "outcome", "samples/s", "device", "host", "seconds")


def render(record: TuneRecord | FailedTune | SweepRecord) -> str:
    """The whole page, with its scripts, styles and data inside: it opens from disk and loads nothing."""
    from plotly.offline import get_plotlyjs  # heavy: only a report needs it

    shown = _sweep(record) if isinstance(record, SweepRecord) else _tune(record)
    figures = {plot.name: plot.figure.to_plotly_json() for plot in shown["plots"]}
    page: str = _template("report.html").render(
        **shown,
        script=_text("report.js"),
        style=_text("report.css"),
        plotly=get_plotlyjs() if figures else "",
        figures=_as_script(figures),
    )
    return page


def save(record: TuneRecord | FailedTune | SweepRecord, path: str | os.PathLike[str]) -> None:
    """Write the page.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_text(render(record), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from None


def compact(record: TuneRecord | SweepRecord) -> str:
    """What a notebook shows, without scripts: the answer, the lines to paste and the trials; of a sweep its table."""
    if isinstance(record, SweepRecord):
        table: str = _template("compact_sweep.html").render(
            title=record.title, origin=content.origin(record), rows=sweep_cells.rows(record)
        )
        return table
    rows = trial_table.trial_rows(record)
    shown: str = _template("compact.html").render(
        record=record,
        tiles=content.tiles(record),
        sentences=content.sentences(record),
        snippet=snippet.render(record),
        trials=rows,
        origin=content.origin(record),
        columns=[name for name in _COMPACT if rows and name in rows[0].fields],
    )
    return shown


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """What the page of one tune shows."""
    compared, choices = tradeoff_plots.pareto(record)
    found: list[Plot | None] = [
        batch_plots.throughput(record),
        batch_plots.memory(record, "device"),
        batch_plots.memory(record, "host"),
        batch_plots.feasible(record),
        *tradeoff_plots.workers_by_queue(record),
        compared,
        timeline.timeline(record),
        timeline.where_it_went(record),
    ]
    drawn = [plot for plot in found if plot is not None] if record.trials else []
    shown = [plot for plot in drawn if plot.figure is not None]
    return {
        **_answer(record),
        "title": f"autofit: {record.config}" if isinstance(record, TuneRecord) else "autofit: no answer",
        "plots": shown,
        "said": {plot.title: plot.caption for plot in drawn if plot.figure is None},
        "wide": wide([plot.name for plot in shown]),
        "alternatives": content.alternatives(record, choices) if len(choices) > 1 else [],
        "machine": content.machine(record.machine, record),
        "cells": [],
    }


def wide(shown: Sequence[str]) -> set[str]:
    """The plots that take the page's whole width: those that need it, and any that would stand alone in a row of two."""
    found = set(_WIDE)
    for needs_width, run in itertools.groupby(shown, _WIDE.__contains__):
        names = list(run)
        if not needs_width and len(names) % 2:
            found.add("frontier" if "frontier" in names[::2] else names[-1])
    return found


def _answer(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """What is said of one tune on top, and its trials."""
    told: dict[str, Any] = {"record": record, "origin": content.origin(record), "trials": trial_table.trial_rows(record)}
    if isinstance(record, TuneRecord):
        return told | {
            "headline": str(record.config),
            "tiles": content.tiles(record),
            "sentences": content.sentences(record),
            "snippet": snippet.render(record),
        }
    return told | {"problem": content.problem(record), "needed": content.needed(record)}


def _sweep(record: SweepRecord) -> dict[str, Any]:
    """What the page of a sweep shows: a table of the cells, a plot, and each cell's own answer."""
    rates = sweep_cells.rates(record)
    return {
        "title": f"autofit: {record.title}",
        "headline": record.title,
        "origin": content.origin(record),
        "plots": [rates] if rates.figure is not None else [],
        "said": {} if rates.figure is not None else {rates.title: rates.caption},
        "wide": {"cell-rates"},
        "trials": [],
        "alternatives": [],
        "machine": content.machine(record.machine) | content.versions(record),
        "cells": [
            {"row": row, "cell": cell, "answer": _answer(cell.found) if isinstance(cell.found, TuneLog) else {}}
            for row, cell in zip(sweep_cells.rows(record), record.cells, strict=True)
        ],
    }


def _template(name: str) -> Any:
    import jinja2  # heavy: only a report needs it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template(name)


def _text(name: str) -> str:
    return (_PAGES / name).read_text(encoding="utf-8")


def _as_script(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(_finite(value), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """The same without NaN and infinity, which JSON does not know: a plot leaves such a point out."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
