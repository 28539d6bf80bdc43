"""The words and tables of a page: key figures, other choices, the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.estimate import Estimate
from autofit.records.machine import Machine
from autofit.records.result import FailedTune, TuneLog, TuneRecord
from autofit.records.sweep import SweepRecord
from autofit.records.units import counted, format_bytes, format_rate, format_seconds
from autofit.report import devices
from autofit.report.advice import advice, bottleneck_sentence, rate_beside_ceilings
from autofit.report.choice import gain_evidence, gain_figure, gain_sentence, why_not_highest
from autofit.report.html import style, tradeoff_plots
from autofit.report.html.trial_table import NONE
from autofit.report.wording import limits_in_words


@dataclass(frozen=True)
class Tile:
    """A key figure; `share` of a limit is drawn as a bar, from 0 to 1."""

    label: str
    value: str
    note: str = ""
    unit: str = ""
    share: float | None = None


def tiles(record: TuneRecord) -> list[Tile]:
    """The key figures of a result."""
    spread = f"±{record.spread:.0%}, " if record.spread is not None else ""
    source = "confirmed in fresh processes" if record.choice.confirmed else "read once in the search: no time to confirm it"
    bottleneck = {"compute": "the model", "input": "the input", "contention": "contention"}.get(
        record.bottleneck, "unknown"
    )
    return [
        Tile("Throughput", format_rate(record.samples_per_second), f"{spread}{source}", "samples/s"),
        _gain(record),
        _margin("Device memory", record.device_peak_bytes, record.limits.device_bytes),
        _margin("Host memory", record.host_peak_bytes, record.limits.host_bytes),
        Tile("What limits it", bottleneck, _ceilings(record)),
    ]


def sentences(record: TuneRecord) -> dict[str, str]:
    """The result in sentences, by subject."""
    why = why_not_highest(record)
    explained = {"gain": gain_sentence(record), **({"why": why} if why else {}), **advice(record)}
    shares = devices.shares(record)
    return {**({"devices": shares} if shares else {}), **explained, "search": record.stop_reason}


def origin(record: TuneLog | SweepRecord) -> str:
    """Date, machine and duration of a tune or a sweep in one line."""
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


def alternatives(log: TuneLog, choices: list[tradeoff_plots.Alternative]) -> list[dict[str, str | bool]]:
    """The Pareto set as rows of a table."""
    return [
        {
            "config": str(a.trial.config),
            "rate": format_rate(a.trial.measurement.samples_per_second or 0.0),
            "memory": format_bytes(a.memory_bytes),
            "memory_change": _change(a.memory_change, "more memory", "less memory"),
            "rate_change": _change(a.rate_change, "faster", "slower"),
            "known": a.memory_change is not None,
            "kwargs": ", ".join(f"{knob}={value!r}" for knob, value in a.trial.config.values().items()),
            "chosen": isinstance(log, TuneRecord) and a.trial.config == log.config,
        }
        for a in choices
    ]


def machine(record: Machine, measured: TuneLog | Estimate | None = None) -> dict[str, str]:
    """The machine, and the limits, the workload and the versions of a tune or an estimate."""
    facts = {
        "host": record.host,
        "system": record.system,
        "processor": f"{record.processor}, {counted(record.cores, 'core')}",
        "memory": f"{format_bytes(record.memory_bytes)}, {format_bytes(record.available_bytes)} of it available",
        "shared memory": format_bytes(record.shared_memory_bytes) if record.shared_memory_bytes else "",
        **{
            f"device {d.index}": f"{d.name}, {format_bytes(d.total_bytes)}" + (f", driver {d.driver}" if d.driver else "")
            for d in record.devices
        },
        "Python": record.python,
    }
    if measured is not None:
        facts |= {"limits": limits_in_words(measured.limits), "device": measured.device}
    if measured is not None and measured.description is not None:
        facts |= _workload(measured.description)
    return {name: text for name, text in facts.items() if text}


def _workload(description: Description) -> dict[str, str]:
    d = description
    model = f"{d.parameter_count:,} parameters ({format_bytes(d.parameter_bytes)})"
    model += f", optimizer {format_bytes(d.optimizer_bytes)}" + (f", compiled by {d.compiler}" if d.compiler else "")
    data = f"{d.input_kind}, {format_bytes(d.sample_bytes)} a sample"
    data += f", {counted(d.sample_count, 'sample')}" if d.sample_count else ""
    texts = {"knobs tuned": ", ".join(d.knobs), "shapes": d.shapes, "notices": " ".join(d.notices)}
    return {**d.versions, "model": model, "input": data, **texts}


def versions(record: SweepRecord) -> dict[str, str]:
    """The versions of the first cell that has any."""
    descriptions = (cell.tune.description for cell in record.cells if cell.tune is not None)
    return next((dict(description.versions) for description in descriptions if description is not None), {})


def needed(record: FailedTune) -> Tile | None:
    """The memory that was needed against the limit; None for other failures."""
    limit = record.limits.device_bytes if record.memory == "device" else record.limits.host_bytes
    if not record.memory or not record.needed_bytes or not limit:
        return None
    least = "more than " if record.at_least else ""
    return Tile(
        f"{record.memory.capitalize()} memory",
        f"{least}{format_bytes(record.needed_bytes)} needed",
        f"the limit is {format_bytes(limit)}",
        share=min(1.0, limit / record.needed_bytes),
    )


def _gain(record: TuneRecord) -> Tile:
    label, speedup = "Against the baseline", record.speedup
    figure = gain_figure(record, "×")
    if figure is None:
        return Tile(label, NONE, f"the baseline failed: {style.OUTCOMES[speedup.baseline_outcome]}")
    if speedup.is_shown or speedup.is_loss:
        interval = f"{speedup.low:.2f} to {speedup.high:.2f} with 95 % probability"
        return Tile(label, figure, f"{interval}; baseline: {speedup.baseline}")
    if record.config == speedup.baseline and record.choice.challenger is None:
        return Tile(label, figure, "the choice is the baseline itself")
    return Tile(label, figure, gain_evidence(record))


def _margin(label: str, peak: int | None, limit: int | None) -> Tile:
    if peak is None:
        return Tile(
            label, NONE, "not counted by this device" if limit is None else f"not read; limit {format_bytes(limit)}"
        )
    if limit is None:
        return Tile(label, format_bytes(peak), "no limit of its own")
    share = peak / limit
    return Tile(label, f"{1 - share:.0%} free", f"peak {format_bytes(peak)} of {format_bytes(limit)}", share=share)


def _ceilings(record: TuneRecord) -> str:
    compute, inputs = record.compute_samples_per_second, record.input_samples_per_second
    if compute is None or inputs is None:
        return bottleneck_sentence(record)
    alone = f"alone the model takes {format_rate(compute)} samples/s, the input makes {format_rate(inputs)}"
    if record.bottleneck == "compute" and inputs < compute:
        return f"{alone}; together they reach {format_rate(rate_beside_ceilings(record))}"
    return alone


def _change(change: float | None, more: str, less: str) -> str:
    if change is None:
        return NONE
    return "the same" if round(change, 2) == 0 else f"{abs(change):.0%} {more if change > 0 else less}"
