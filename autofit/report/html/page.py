"""Self-contained HTML pages, and the short form that a notebook shows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.backends import BACKENDS
from autofit.records.result import FailedTune, SweepRecord, TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase
from autofit.records.trial import FitConfig, Trial
from autofit.records.units import counted, format_bytes, format_seconds, printable
from autofit.report import choice, columns, snippet
from autofit.report.html import plots
from autofit.storage import result_files

_TEMPLATES = Path(__file__).parent / "templates"
_MIN_SECONDS = 0.1  # shorter phases are left out

Record = TuneRecord | FailedTune | SweepRecord


def render(record: Record) -> str:
    """Return the page of a tune or a sweep; it opens from disk and loads no other file."""
    from plotly.io.json import to_json_plotly  # plotly loads slowly: only when a report is drawn
    from plotly.offline import get_plotlyjs

    drawn = (
        [plots.throughput(record), plots.memory(record)]
        if isinstance(record, TuneLog)
        else [plots.cell_rates(record)]
    )
    shown = [plot for plot in drawn if plot is not None]
    figures = {plot.name: plot.figure for plot in shown}
    return _fill(
        "page.html",
        record,
        plots=shown,
        plotly=get_plotlyjs() if figures else "",
        figures=to_json_plotly(
            figures, engine="json"
        ),  # without <, > and /: no text in it ends the script element
    )


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the page to a file; raise UsageError if the file cannot be written."""
    result_files.write(render(record), path)


def compact(record: TuneRecord | SweepRecord) -> str:
    """Return HTML without scripts for a notebook: a tune's answers, lines to paste and trials, or a sweep's cells."""
    return _fill("compact.html", record)


def _fill(template: str, record: Record, **shown: Any) -> str:
    """Fill a template with what the page and the notebook show of a record, and with what only the page shows."""
    import jinja2  # loads slowly: only when a report is drawn

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: (
            printable(value) if type(value) is str else value
        ),  # keeps markup that is marked as safe
    )
    content = _sweep(record) if isinstance(record, SweepRecord) else _tune(record)
    rows = content["rows"]
    used = [
        column
        for column in (rows[0] if rows else ())
        if any(row[column] not in ("", choice.NONE) for row in rows)
    ]
    shown |= {"columns": used, "origin": _origin(record)}
    return str(environment.get_template(template).render(content | shown))


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    source, trials = record.call_source, (*record.searched, *record.runs)
    labels: dict[FitConfig, str] = {}
    content: dict[str, Any] = {"answers": [], "sentences": {}, "problem": ""}
    if isinstance(record, FailedTune):
        what = f"Not enough {record.memory} memory" if record.memory else "The tune failed"
        content |= {"problem": record.problem, "what": what}
    else:
        headlines = choice.headlines(record)
        labels = {
            record.speedup.baseline: "baseline",
            **{h.answer.config: h.label for h in headlines},
        }
        answers = [
            (h, choice.figures(record, h.answer), snippet.render(record, h.answer))
            for h in headlines
        ]
        content |= {"answers": answers, "sentences": choice.advice(record)}
    runs = f", {counted(len(record.runs), 'further run')}" if record.runs else ""
    return {
        **content,
        "texts": columns.TEXTS,
        "title": source.script or f"{source.model.partition('(')[0]} on {source.data}",
        "workload": _workload(record),
        "heading": f"{counted(len(record.searched), 'configuration')} tried{runs}",
        "rows": [
            {"trial": row["trial"], "answer": labels.get(trial.config, ""), **row}
            for trial, row in zip(trials, columns.trial_rows(trials, record.limits), strict=True)
        ],
        "details": [_details(trial) for trial in trials],
    }


def _sweep(record: SweepRecord) -> dict[str, Any]:
    rows = [
        row | ({columns.FASTEST: columns.cell_outcome(cell)} if cell.problem else {})
        for cell, row in zip(record.cells, columns.cell_rows(record), strict=True)
    ]
    content = {
        "title": record.title,
        "heading": counted(len(record.cells), "cell"),
        "rows": rows,
        "details": [],
    }
    texts = (*columns.TEXTS, *record.axes, *columns.short_names(record.axes).values())
    return {
        "answers": [],
        "sentences": {},
        "problem": "",
        "workload": {},
        "texts": texts,
        **content,
    }


def _origin(record: TuneLog | SweepRecord) -> str:
    when = (
        time.strftime(" %Y-%m-%d %H:%M UTC", time.gmtime(record.started_at))
        if record.started_at
        else ""
    )
    where = f" on {record.machine.host}" if record.machine.host else ""
    return f"Tuned{when}{where} in {format_seconds(record.seconds)}."


def _workload(record: TuneLog) -> dict[str, str]:
    source, m, d = record.call_source, record.machine, record.description
    given = ", ".join(f"{name}={value!r}" for name, value in source.data_kwargs.items())
    facts = {
        "model": source.model,
        "data": f"{source.data}({given})" if source.data_form == "factory" else source.data,
        "call": source.call
        + (f", with validation on {source.validation}" if source.validation else ""),
        "device": record.device,
        "limits": choice.limits_in_words(record.limits),
        "machine": f"{m.processor}, {counted(m.cores, 'core')}, {format_bytes(m.memory_bytes)}, {m.system}",
    }
    if source.script:
        facts = {"script": source.script, **facts, "data": "its data"}
    if d is None:
        return facts
    compiled = f", compiled by {BACKENDS[d.backend].compiler}" if d.jit_compile else ""
    facts["model"] += (
        f": {d.parameter_count:,} parameters, {format_bytes(d.parameter_bytes)}{compiled}"
    )
    facts["data"] += f": {d.input_kind}, {format_bytes(d.sample_bytes)} per sample"
    facts["data"] += f", {d.samples_in_words}" if d.sample_count else ""
    versions = ", ".join(
        f"{name} {version}" for name, version in {"Python": m.python, **d.versions}.items()
    )
    return {**facts, "versions": versions, "shapes": d.shapes, "notices": " ".join(d.notices)}


def _details(trial: Trial) -> dict[str, Any]:
    m, e = trial.measurement, trial.measurement.evidence
    ended = f", while {e.phase.label}" if e.phase and m.outcome is not Outcome.OK else ""
    facts = {
        "why it was tried": trial.why,
        "how it ended": e.reason + ended,
        "device peak by phase": _sizes(m.device_peak_bytes_by_phase),
        "host peak by phase": _sizes(m.host_peak_bytes_by_phase),
        "time": ", ".join(
            f"{p.label} {format_seconds(s)}"
            for p, s in m.phase_seconds.items()
            if s >= _MIN_SECONDS
        ),
    }
    return {"facts": facts, "logs": [log for log in (m.traceback, "\n".join(e.log_tail)) if log]}


def _sizes(by_phase: Mapping[Phase, int]) -> str:
    return ", ".join(f"{phase.label} {format_bytes(size)}" for phase, size in by_phase.items())
