"""HTML pages: one file each, with everything they need inside; and the few lines that a notebook shows."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.estimate import Estimate
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import SweepRecord
from autofit.records.units import printable
from autofit.report import snippet, wording
from autofit.report.html import batch_plots, content, estimate_plots, sweep_cells, timeline, tradeoff_plots, trial_table
from autofit.report.html.style import Plot

_TEMPLATES = Path(__file__).parent / "templates"
_WIDE = ("throughput", "pareto", "timeline", "phases", "cell-rates")
_COMPACT = ("#", "stage", "batch", "workers", "queue", "outcome", "samples/s", "device", "host", "seconds")

Record = TuneRecord | FailedTune | SweepRecord | Estimate


def render(record: Record) -> str:
    """The page of a tune, a sweep or an estimate; it opens from disk and loads nothing."""
    from plotly.offline import get_plotlyjs  # loads slowly: only when a report is drawn

    shown: dict[str, Any]
    if isinstance(record, Estimate):
        template, shown = "estimate.html", _estimate(record)
    else:
        template, shown = "report.html", _sweep(record) if isinstance(record, SweepRecord) else _tune(record)
    figures = {plot.name: plot.figure.to_plotly_json() for plot in shown["plots"]}
    page: str = _template(template).render(
        **shown,
        script=_text("report.js"),
        style=_text("report.css"),
        plotly=get_plotlyjs() if figures else "",
        figures=as_script(figures),
    )
    return page


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the page.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_text(render(record), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: the page cannot be written: {error.strerror}") from None


def compact(record: TuneRecord | SweepRecord) -> str:
    """HTML without scripts for a notebook: key figures, lines to paste and trials of a tune; the cells of a sweep."""
    if isinstance(record, SweepRecord):
        cells = sweep_cells.rows(record)
        table: str = _template("compact_sweep.html").render(title=record.title, origin=content.origin(record), rows=cells)
        return table
    result = _result(record)
    columns = [name for name in _COMPACT if result["trials"] and name in result["trials"][0].fields]
    shown: str = _template("compact.html").render(**result, columns=columns)
    return shown


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    comparison, alternatives = tradeoff_plots.pareto(record)
    plots: list[Plot | None] = [
        batch_plots.throughput(record),
        batch_plots.memory(record, "device"),
        batch_plots.memory(record, "host"),
        batch_plots.feasible(record),
        *tradeoff_plots.workers_by_queue(record),
        comparison,
        timeline.timeline(record),
        timeline.where_it_went(record),
    ]
    result = _result(record)
    return {
        **result,
        **_plots([plot for plot in plots if plot is not None] if record.trials else []),
        "title": f"autofit: {result['headline']}",
        "alternatives": content.alternatives(record, alternatives) if len(alternatives) > 1 else [],
        "machine": content.machine(record.machine, record),
        "cells": [],
    }


def _result(record: TuneRecord | FailedTune) -> dict[str, Any]:
    """The top of a page on one tune, and its trials."""
    shared = {"origin": content.origin(record), "trials": trial_table.trial_rows(record)}
    if isinstance(record, FailedTune):
        headline = f"Not enough {record.memory} memory" if record.memory else "The tune failed"
        return {**shared, "headline": headline, "problem": record.problem, "needed": content.needed(record)}
    return {
        **shared,
        "problem": None,
        "headline": str(record.config),
        "tiles": content.tiles(record),
        "sentences": content.sentences(record),
        "snippet": snippet.render(record),
    }


def _sweep(record: SweepRecord) -> dict[str, Any]:
    return {
        **_plots([sweep_cells.rates(record)]),
        "title": f"autofit: {record.title}",
        "headline": record.title,
        "origin": content.origin(record),
        "problem": None,
        "trials": [],
        "alternatives": [],
        "machine": content.machine(record.machine) | content.versions(record),
        "cells": [
            {"row": row, "cell": cell, "answer": {} if cell.tune is None else _result(cell.tune)}
            for row, cell in zip(sweep_cells.rows(record), record.cells, strict=True)
        ],
    }


def _estimate(record: Estimate) -> dict[str, Any]:
    largest = record.largest_batch_size
    headline = "Not even a batch of 1 is expected to fit"
    if largest is not None:
        headline = f"Batch sizes up to {largest:,} are expected to fit"
    return {
        "title": f"autofit: {headline}",
        "headline": headline,
        "origin": f"For {record.machine.host or 'this machine'} ({record.device})",
        "facts": wording.estimate_facts(record),
        "plots": estimate_plots.estimate_plots(record),
        "machine": content.machine(record.machine, record),
    }


def _plots(plots: Sequence[Plot]) -> dict[str, Any]:
    """The plots that are drawn, those that take the whole width, and the captions of the others."""
    drawn = [plot for plot in plots if plot.figure is not None]
    not_drawn = {plot.title: plot.caption for plot in plots if plot.figure is None}
    return {"plots": drawn, "not_drawn": not_drawn, "wide": wide([plot.name for plot in drawn])}


def wide(names: Sequence[str]) -> set[str]:
    """The plots that take the whole width: those that need it, and any that would be alone in a row of two."""
    alone = set(_WIDE)
    for needs_width, run in itertools.groupby(names, _WIDE.__contains__):
        halves = list(run)
        if not needs_width and len(halves) % 2:
            alone.add("frontier" if "frontier" in halves[::2] else halves[-1])
    return alone


def _template(name: str) -> Any:
    import jinja2  # loads slowly: only when a report is drawn

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not what is marked as safe
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def as_script(value: Any) -> str:
    """JSON for a script element: escaped so that nothing in it ends the element."""
    text = json.dumps(_finite(value), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON lacks; a plot leaves such a point out."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
