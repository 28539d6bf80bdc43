"""The table of trials: a row for each, with details below."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.trial import Trial, value_in_words
from autofit.records.units import format_bytes, format_rate, format_seconds

_MIN_SECONDS = 0.1  # shorter phases are left out
_OPTIONAL = ("workers", "queue", "±", "model alone", "input alone", "device", "host")

NONE = "–"
"""An empty cell of a table."""


@dataclass(frozen=True)
class Field:
    """A cell of a table: its text, and the number it is sorted by (None: by its text); `share` of a limit is a bar."""

    text: str
    order: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class TrialRow:
    """A row of the table and the details below it; `mark` is the kind of its outcome: ok, oom or other."""

    mark: str
    chosen: bool
    fields: dict[str, Field]
    facts: dict[str, str]
    log: tuple[str, ...]
    traceback: str


def trial_rows(log: TuneLog) -> list[TrialRow]:
    """The trials of the search and the runs after it; columns without any value are left out."""
    rows, number = [], 0
    for trial in (*log.searched, *log.runs):
        searched = trial.stage is Stage.SEARCH
        number += searched
        chosen = searched and isinstance(log, TuneRecord) and trial.config == log.config
        rows.append(_row(log, number if searched else None, trial, chosen))
    empty = [name for name in _OPTIONAL if all(row.fields[name].text == NONE for row in rows)]
    for row, name in itertools.product(rows, empty):
        del row.fields[name]
    return rows


def _row(log: TuneLog, number: int | None, trial: Trial, chosen: bool) -> TrialRow:
    m, c, limits = trial.measurement, trial.config, log.limits
    workers = NONE if c.workers is None else f"{value_in_words(c.workers)} {'proc' if c.use_multiprocessing else 'thr'}"
    queue = c.queue_in_words or NONE
    fields = {
        "#": Field(str(number) if number else "", number),
        "stage": Field(trial.stage),
        "batch": _count(c.batch_size),
        "workers": Field(workers, c.workers),
        "queue": Field(queue, None if queue == NONE else c.queue_batches),
        "outcome": Field({Outcome.DEVICE_OOM: "device OOM", Outcome.HOST_OOM: "host OOM"}.get(m.outcome, m.outcome.value)),
        "samples/s": _rate(m.samples_per_second),
        "±": Field(NONE if m.spread is None else f"{m.spread:.0%}", m.spread),
        "model alone": _rate(m.compute_samples_per_second),
        "input alone": _rate(m.input_samples_per_second),
        "device": _memory(m.device_peak_bytes, limits.device_bytes),
        "host": _memory(m.host_peak_bytes, limits.host_bytes),
        "seconds": Field(f"{m.seconds:.1f}", m.seconds),
    }
    mark = "ok" if m.outcome is Outcome.OK else "oom" if m.outcome.is_oom else "other"
    return TrialRow(mark, chosen, fields, _facts(trial), m.evidence.log_tail, m.traceback or "")


def _facts(trial: Trial) -> dict[str, str]:
    """The details below a row, by subject."""
    m, e = trial.measurement, trial.measurement.evidence
    failed = m.outcome is not Outcome.OK
    exit_parts = [f"code {e.exit_code}"] if e.exit_code else []
    exit_parts += [f"signal {e.signal}"] if e.signal else []
    alone = (("model alone", m.compute_samples_per_second), ("input alone", m.input_samples_per_second))
    facts = {
        "why it was tried": trial.why,
        "how it ended": e.reason + (f", while {e.phase.label}" if e.phase and failed else ""),
        "exit": ", ".join(exit_parts),
        "last reading": f"{format_bytes(e.last_host_bytes)} of host memory" if e.last_host_bytes and failed else "",
        "steps": f"{m.steps:,}, {_step(m.step_seconds)} each" if m.steps and m.step_seconds else "",
        "samples/s": "; ".join(f"{name} {format_rate(rate)}" for name, rate in alone if rate),
        "device peak by phase": _sizes(m.device_peak_bytes_by_phase),
        "host peak by phase": _sizes(m.host_peak_bytes_by_phase),
        "peak by the driver": format_bytes(m.driver_peak_bytes) if m.driver_peak_bytes else "",
        "slowed down for lack of memory, times": f"{m.allocator_fallbacks:,}" if m.allocator_fallbacks else "",
        "batches queued": f"{m.queued_batches:,}" if m.queued_batches is not None else "",
        "time": ", ".join(
            f"{phase.label} {format_seconds(s)}" for phase, s in m.phase_seconds.items() if s >= _MIN_SECONDS
        ),
    }
    return {name: text for name, text in facts.items() if text}


def _step(seconds: float) -> str:
    """The duration of a step."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _sizes(by_phase: Mapping[Phase, int]) -> str:
    return ", ".join(f"{phase.label} {format_bytes(size)}" for phase, size in by_phase.items())


def _count(value: int | None) -> Field:
    return Field(NONE if value is None else f"{value:,}", value)


def _rate(value: float | None) -> Field:
    return Field(NONE if value is None else format_rate(value), value)


def _memory(peak: int | None, limit: int | None) -> Field:
    return Field(NONE if peak is None else format_bytes(peak), peak, min(1.0, peak / limit) if peak and limit else None)
