"""Self-contained HTML pages, and the short form that a notebook shows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.result import FailedTune, TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.sweep import SweepRecord
from autofit.records.trial import Trial
from autofit.records.units import counted, format_bytes, format_seconds, printable
from autofit.report import choice, snippet, wording
from autofit.report.choice import Figure
from autofit.report.columns import Column, Output, TrialRow, cell_columns, trial_columns, trial_rows
from autofit.report.html import plots

_TEMPLATES = Path(__file__).parent / "templates"
_MIN_SECONDS = 0.1  # shorter phases are left out
_MARKS = {Outcome.OK: "ok", Outcome.DEVICE_OOM: "oom", Outcome.HOST_OOM: "oom"}

Record = TuneRecord | FailedTune | SweepRecord


def render(record: Record) -> str:
    """Return the page of a tune or a sweep; it opens from disk and loads no other file."""
    from plotly.io.json import to_json_plotly  # plotly loads slowly: only when a report is drawn
    from plotly.offline import get_plotlyjs

    shown = _sweep(record) if isinstance(record, SweepRecord) else _tune(record)
    figures = {plot.name: plot.figure for plot in shown["plots"]}
    return _fill(
        "report.html",
        **shown,
        script=(_TEMPLATES / "report.js").read_text(encoding="utf-8"),
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs() if figures else "",
        figures=to_json_plotly(figures, engine="json"),  # without <, > and /: no text in it ends the script element
    )


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the page to a file; raise UsageError if the file cannot be written."""
    try:
        Path(path).write_text(render(record), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: the page cannot be written: {error.strerror}") from None


def compact(record: TuneRecord | SweepRecord) -> str:
    """Return HTML without scripts for a notebook: a tune's figures, lines to paste and trials, or a sweep's cells."""
    if isinstance(record, SweepRecord):
        columns = cell_columns(record, Output.NOTEBOOK)
        rows = [[column.field(cell) for column in columns] for cell in record.cells]
        return _fill("compact_sweep.html", title=record.title, origin=origin(record), columns=columns, rows=rows)
    return _fill("compact.html", **_result(record, Output.NOTEBOOK))


def _tune(record: TuneRecord | FailedTune) -> dict[str, Any]:
    drawn = [plots.throughput(record), plots.memory(record, "device"), plots.memory(record, "host")]
    return {
        **_result(record, Output.PAGE),
        "plots": [plot for plot in drawn if plot is not None],
        "machine": machine(record),
        "cells": [],
    }


def _result(record: TuneRecord | FailedTune, output: Output) -> dict[str, Any]:
    trial_columns, trials = trial_table(record, output)
    shared = {"origin": origin(record), "trial_columns": trial_columns, "trials": trials}
    if isinstance(record, FailedTune):
        headline = f"Not enough {record.memory} memory" if record.memory else "The tune failed"
        return {**shared, "headline": headline, "problem": record.problem, "needed": needed(record)}
    return {
        **shared,
        "problem": None,
        "headline": str(record.config),
        "tiles": choice.figures(record),
        "sentences": choice.sentences(record),
        "snippet": snippet.render(record),
        "verb": record.call_source.verb,
    }


def _sweep(record: SweepRecord) -> dict[str, Any]:
    columns, rates = cell_columns(record, Output.PAGE), plots.cell_rates(record)
    return {
        "plots": [] if rates is None else [rates],
        "headline": record.title,
        "origin": origin(record),
        "machine": machine(record),
        "columns": columns,
        "cells": [
            {
                "fields": [column.field(cell) for column in columns],
                "cell": cell,
                "answer": {} if cell.tune is None else _result(cell.tune, Output.PAGE),
            }
            for cell in record.cells
        ],
    }


def _fill(template: str, **shown: Any) -> str:
    import jinja2  # loads slowly: only when a report is drawn

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # keeps markup that is marked as safe
    )
    return str(environment.get_template(template).render(shown))


def origin(record: TuneLog | SweepRecord) -> str:
    """Return the date, machine and duration of a tune or a sweep in one line."""
    parts = ["Tuned"]
    if record.started_at:
        parts.append(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.started_at)))
    if record.machine.host:
        parts.append(f"on {record.machine.host}")
    if isinstance(record, TuneLog):
        parts.append(f"({record.device})")
        text = f"{counted(len(record.searched), 'trial')} of the search"
        text += f", {counted(len(record.runs), 'run')} after it" if record.runs else ""
    else:
        text = counted(len(record.cells), "cell")
    return f"{' '.join(parts)}. {text}, {format_seconds(record.seconds)} in all."


def machine(record: Record) -> dict[str, str]:
    """Describe the machine, workload and limits of a record; for a sweep, describe only the machine and the versions."""
    m = record.machine
    facts = {
        "host": m.host,
        "system": m.system,
        "processor": f"{m.processor}, {counted(m.cores, 'core')}",
        "memory": f"{format_bytes(m.memory_bytes)}, {format_bytes(m.available_bytes)} of it available",
        "shared memory": format_bytes(m.shared_memory_bytes) if m.shared_memory_bytes else "",
        **{
            f"device {d.index}": f"{d.name}, {format_bytes(d.total_bytes)}" + (f", driver {d.driver}" if d.driver else "")
            for d in m.devices
        },
        "Python": m.python,
    }
    if isinstance(record, SweepRecord):
        described = (cell.tune.description for cell in record.cells if cell.tune is not None)
        return facts | next((dict(description.versions) for description in described if description is not None), {})
    facts |= {"limits": wording.limits_in_words(record.limits), "device": record.device}
    if (d := record.description) is None:
        return facts
    model = f"{d.parameter_count:,} parameters ({format_bytes(d.parameter_bytes)})"
    model += f", optimizer {format_bytes(d.optimizer_bytes)}" + (f", compiled by {d.compiler}" if d.compiler else "")
    data = f"{d.input_kind}, {format_bytes(d.sample_bytes)} per sample"
    data += f", {counted(d.sample_count, 'sample')}" if d.sample_count else ""
    trials = record.trials if isinstance(record, TuneLog) else ()
    of_model = [STEPS_PER_EXECUTION] if any(trial.config.steps_per_execution is not None for trial in trials) else []
    texts = {"knobs tuned": ", ".join([*d.knobs, *of_model]), "shapes": d.shapes, "notices": " ".join(d.notices)}
    return {**facts, **d.versions, "model": model, "input": data, **texts}


def needed(record: FailedTune) -> Figure | None:
    """Return the memory that was needed and the fraction of it that the limit allows; None if either is unknown."""
    limit = record.limits.device_bytes if record.memory == "device" else record.limits.host_bytes
    if not record.memory or not record.needed_bytes or not limit:
        return None
    value = f"{'more than ' if record.at_least else ''}{format_bytes(record.needed_bytes)} needed"
    share = min(1.0, limit / record.needed_bytes)
    return Figure(f"{record.memory.capitalize()} memory", value, f"the limit is {format_bytes(limit)}", share)


def trial_table(log: TuneLog, output: Output) -> tuple[list[Column[TrialRow]], list[dict[str, Any]]]:
    """Return the columns and rows of the trials of the search and of the runs after it."""
    rows = trial_rows((*log.searched, *log.runs), log.limits)
    columns = trial_columns(output, rows)
    chosen = log.config if isinstance(log, TuneRecord) else None
    table = [
        {
            "trial": row.trial,
            "mark": _MARKS.get(row.trial.measurement.outcome, "other"),
            "is_chosen": row.trial.config == chosen and row.trial.stage is Stage.SEARCH,
            "fields": [column.field(row) for column in columns],
            "facts": _details(row.trial),
        }
        for row in rows
    ]
    return columns, table


def _details(trial: Trial) -> dict[str, str]:
    m, e = trial.measurement, trial.measurement.evidence
    failed = m.outcome is not Outcome.OK
    return {
        "why it was tried": trial.why,
        "how it ended": e.reason + (f", while {e.phase.label}" if e.phase and failed else ""),
        "exit": ", ".join(f"{name} {value}" for name, value in (("code", e.exit_code), ("signal", e.signal)) if value),
        "last reading": f"{format_bytes(e.last_host_bytes)} of host memory" if e.last_host_bytes and failed else "",
        "steps": f"{m.steps:,}, {m.step_seconds * 1000:,.1f} ms each" if m.steps and m.step_seconds else "",
        "device peak by phase": _sizes(m.device_peak_bytes_by_phase),
        "host peak by phase": _sizes(m.host_peak_bytes_by_phase),
        "peak read by driver": format_bytes(m.driver_peak_bytes) if m.driver_peak_bytes else "",
        "allocator fallbacks": f"{m.allocator_fallbacks:,}" if m.allocator_fallbacks else "",
        "batches queued": f"{m.queued_batches:,}" if m.queued_batches is not None else "",
        "time": ", ".join(f"{p.label} {format_seconds(s)}" for p, s in m.phase_seconds.items() if s >= _MIN_SECONDS),
    }


def _sizes(by_phase: Mapping[Phase, int]) -> str:
    return ", ".join(f"{phase.label} {format_bytes(size)}" for phase, size in by_phase.items())
