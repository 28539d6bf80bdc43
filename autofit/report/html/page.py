"""HTML pages that hold everything they need in one file, and the short form that a notebook shows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.estimate import Estimate
from autofit.records.result import FailedTune, TuneRecord
from autofit.records.sweep import SweepRecord
from autofit.records.units import printable
from autofit.report import choice, columns, snippet, wording
from autofit.report.columns import Output
from autofit.report.html import batch_plots, content, estimate_plots, sweep_plot, timeline
from autofit.report.html.style import Plot

_TEMPLATES = Path(__file__).parent / "templates"

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
        shown = {"title": record.title, "origin": content.origin(record), **_cells(record, Output.NOTEBOOK)}
        sweep: str = _template("compact_sweep.html").render(**shown)
        return sweep
    tune: str = _template("compact.html").render(**_result(record, Output.NOTEBOOK))
    return tune


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    plots = (
        batch_plots.throughput(record),
        batch_plots.memory(record, "device"),
        batch_plots.memory(record, "host"),
        timeline.timeline(record),
    )
    result = _result(record, Output.PAGE)
    return {
        **result,
        **_plots(plots),
        "title": f"autofit: {result['headline']}",
        "alternatives": content.alternatives(record) if isinstance(record, TuneRecord) else [],
        "machine": content.machine(record.machine, record),
        "cells": [],
    }


def _result(record: TuneRecord | FailedTune, output: Output) -> dict[str, Any]:
    """The top of a page on one tune, and its trials."""
    trial_columns, trials = content.trial_table(record, output)
    shared = {"origin": content.origin(record), "trial_columns": trial_columns, "trials": trials}
    if isinstance(record, FailedTune):
        headline = f"Not enough {record.memory} memory" if record.memory else "The tune failed"
        return {**shared, "headline": headline, "problem": record.problem, "needed": content.needed(record)}
    return {
        **shared,
        "problem": None,
        "headline": str(record.config),
        "tiles": choice.figures(record),
        "sentences": choice.sentences(record),
        "snippet": snippet.render(record),
    }


def _cells(record: SweepRecord, output: Output) -> dict[str, Any]:
    """The columns of the table of cells, and the fields of each row."""
    shown = columns.cell_columns(record, output)
    rows = [[column.field(row) for column in shown] for row in columns.cell_rows(record)]
    return {"columns": shown, "rows": rows}


def _sweep(record: SweepRecord) -> dict[str, Any]:
    table = _cells(record, Output.PAGE)
    return {
        **_plots([sweep_plot.rates(record)]),
        "title": f"autofit: {record.title}",
        "headline": record.title,
        "origin": content.origin(record),
        "problem": None,
        "trials": [],
        "alternatives": [],
        "machine": content.machine(record.machine) | content.versions(record),
        "columns": table["columns"],
        "cells": [
            {"fields": fields, "cell": cell, "answer": {} if cell.tune is None else _result(cell.tune, Output.PAGE)}
            for fields, cell in zip(table["rows"], record.cells, strict=True)
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


def _plots(plots: Iterable[Plot | None]) -> dict[str, Any]:
    """The plots that there are; those of memory share a row if there are two."""
    drawn = [plot for plot in plots if plot is not None]
    memory = {plot.name for plot in drawn if plot.name.startswith("memory-")}
    return {"plots": drawn, "halves": memory if len(memory) > 1 else set()}


def _template(name: str) -> Any:
    import jinja2  # loads slowly: only when a report is drawn

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # leaves markup that is marked as safe
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def as_script(value: Any) -> str:
    """JSON for a script element, escaped so that nothing in it ends the element."""
    text = json.dumps(_finite(value), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """The value with null in place of NaN and infinity, which JSON lacks; a plot leaves such a point out."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
