"""Self-contained HTML pages, and the short form that a notebook shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.backends import BACKENDS
from autofit.records.knobs import FitConfig
from autofit.records.result import FailedTune, SweepRecord, TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase
from autofit.records.trial import Trial
from autofit.records.units import counted, format_bytes, format_seconds, printable
from autofit.report import choice, columns, snippet
from autofit.report.html import plots
from autofit.storage import result_files

_TEMPLATES = Path(__file__).parent / "templates"
# shorter phases are left out
_MIN_SECONDS = 0.1

# of what only some records have, for the templates
_EMPTY: dict[str, Any] = {
    "answers": [],
    "sentences": {},
    "problem": "",
    "workload": {},
    "details": [],
}

Record = TuneRecord | FailedTune | SweepRecord


def render(record: Record) -> str:
    """Return the page of a tune or a sweep; it opens from disk and loads no other file."""
    # plotly loads slowly: only when a report is drawn
    from plotly.io.json import to_json_plotly
    from plotly.offline import get_plotlyjs

    if isinstance(record, SweepRecord):
        drawn = [plots.cell_rates(record)]
    else:
        drawn = [plots.throughput(record), plots.memory(record)]
    shown = [plot for plot in drawn if plot is not None]
    return _fill(
        "page.html",
        record,
        plots=shown,
        plotly=get_plotlyjs() if shown else "",
        # without <, > and /: no text in it ends the script element
        figures=to_json_plotly(
            {plot.name: plot.figure for plot in shown}, engine="json"
        ),
    )


def save(record: Record, path: result_files.StrPath) -> None:
    """Write the page to a file; raise UsageError if the file cannot be written."""
    result_files.write(render(record), path)


def compact(record: TuneRecord | SweepRecord) -> str:
    """Return HTML without scripts, for a notebook."""
    return _fill("compact.html", record)


def _fill(template: str, record: Record, **shown: Any) -> str:
    """Fill a template with what page and notebook show, and with what only the page shows."""
    # loads slowly: only when a report is drawn
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # of a subclass is markup that is marked as safe
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["kind_of"] = snippet.kind_of
    content = _sweep(record) if isinstance(record, SweepRecord) else _tune(record)
    rows = content["rows"]
    used = [
        column
        for first in rows[:1]
        for column in first
        if any(row[column] not in ("", choice.NONE) for row in rows)
    ]
    origin = "Tuned"
    if record.started_at:
        origin += time.strftime(" %Y-%m-%d %H:%M UTC", time.gmtime(record.started_at))
    if record.machine.host:
        origin += f" on {record.machine.host}"
    origin += f" in {format_seconds(record.seconds)}."
    shown |= {"columns": used, "origin": origin}
    return str(environment.get_template(template).render(_EMPTY | content | shown))


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    source = record.call_source
    trials = record.readings
    heading = f"{counted(len(record.searched), 'configuration')} tried"
    if record.runs:
        heading += f", {counted(len(record.runs), 'further run')}"
    content: dict[str, Any] = {
        "texts": columns.TEXTS,
        "title": source.script or f"{source.model.partition('(')[0]} on {source.data}",
        "workload": _workload(record),
        "heading": heading,
        "details": [_details(trial) for trial in trials],
    }
    labels: dict[FitConfig, str] = {}
    if isinstance(record, FailedTune):
        content["problem"] = record.problem
        content["what"] = "The tune failed"
        if record.memory:
            content["what"] = f"Not enough {record.memory} memory"
    else:
        labels[record.speedup.baseline] = "baseline"
        answers = []
        for headline in choice.headlines(record):
            answer = headline.answer
            labels[answer.config] = headline.label
            code = snippet.render(record, answer)
            answers.append((headline, choice.figures(record, answer), code))
        content["answers"] = answers
        content["sentences"] = choice.advice(record)
    rows = columns.trial_rows(trials, record.limits)
    content["rows"] = [
        {"trial": row["trial"], "answer": labels.get(trial.config, ""), **row}
        for trial, row in zip(trials, rows, strict=True)
    ]
    return content


def _sweep(record: SweepRecord) -> dict[str, Any]:
    axes = columns.short_names(record.axes)
    rows = columns.cell_rows(record)
    for cell, row in zip(record.cells, rows, strict=True):
        if cell.problem:
            row[columns.FASTEST] = columns.cell_outcome(cell)
    return {
        "texts": (*columns.TEXTS, *axes, *axes.values()),
        "title": record.title,
        "heading": counted(len(record.cells), "cell"),
        "rows": rows,
    }


def _workload(record: TuneLog) -> dict[str, str]:
    source = record.call_source
    machine = record.machine
    facts = {"script": source.script} if source.script else {}
    facts["model"] = source.model
    facts["data"] = "its data" if source.script else source.data
    if source.data_form == "factory" and not source.script:
        given = ", ".join(
            f"{name}={value!r}" for name, value in source.data_kwargs.items()
        )
        facts["data"] += f"({given})"
    facts["call"] = source.call
    if source.validation:
        facts["call"] += f", with validation on {source.validation}"
    facts["device"] = record.device
    facts["limits"] = choice.limits_in_words(record.limits)
    memory = format_bytes(machine.memory_bytes)
    cores = counted(machine.cores, "core")
    facts["machine"] = f"{machine.processor}, {cores}, {memory}, {machine.system}"
    d = record.description
    if d is None:
        return facts
    facts["model"] += (
        f": {d.parameter_count:,} parameters, {format_bytes(d.parameter_bytes)}"
    )
    if d.jit_compile:
        facts["model"] += f", compiled by {BACKENDS[d.backend].compiler}"
    facts["data"] += f": {d.input_kind}, {format_bytes(d.sample_bytes)} per sample"
    if d.sample_count:
        facts["data"] += f", {d.samples_in_words}"
    versions = {"Python": machine.python, **d.versions}
    facts["versions"] = ", ".join(
        f"{name} {version}" for name, version in versions.items()
    )
    facts["shapes"] = d.shapes
    facts["notices"] = " ".join(d.notices)
    return facts


def _details(trial: Trial) -> dict[str, Any]:
    measured = trial.measurement
    evidence = measured.evidence
    end = evidence.reason
    if evidence.phase and measured.outcome is not Outcome.OK:
        end += f", while {evidence.phase.label}"
    times = [
        f"{phase.label} {format_seconds(seconds)}"
        for phase, seconds in measured.phase_seconds.items()
        if seconds >= _MIN_SECONDS
    ]
    facts = {
        "why it was tried": trial.why,
        "how it ended": end,
        "device peak by phase": _sizes(measured.device_peak_bytes_by_phase),
        "host peak by phase": _sizes(measured.host_peak_bytes_by_phase),
        "time": ", ".join(times),
    }
    logs = (measured.traceback, "\n".join(evidence.log_tail))
    return {"facts": facts, "logs": [log for log in logs if log]}


def _sizes(by_phase: Mapping[Phase, int]) -> str:
    return ", ".join(
        f"{phase.label} {format_bytes(size)}" for phase, size in by_phase.items()
    )
