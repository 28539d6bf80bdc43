"""What the page says in words and tables: the answer's figures, the trials, other choices, the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autofit.records.machine import Machine
from autofit.records.result import FailedTune, SweepRecord, TuneLog, TuneRecord
from autofit.records.units import counted, format_bytes, format_rate, format_seconds
from autofit.report import snippet
from autofit.report.advice import advice
from autofit.report.html import style, tradeoff_plots
from autofit.report.html.trial_table import NONE


@dataclass(frozen=True)
class Tile:
    """One figure of the answer, its unit apart where it has one; `share` of a limit is drawn as a bar, from 0 to 1."""

    label: str
    value: str
    note: str = ""
    unit: str = ""
    share: float | None = None


def tiles(record: TuneRecord) -> list[Tile]:
    """The figures of the answer."""
    spread = f"±{record.spread:.0%}, " if record.spread is not None else ""
    proof = "confirmed in fresh processes" if record.confirmed else "not confirmed"
    bottleneck = {"compute": "the model", "input": "the input", "contention": "contention"}.get(
        record.bottleneck, "unknown"
    )
    return [
        Tile("Throughput", format_rate(record.samples_per_second), spread + proof, "samples/s"),
        _gain(record),
        _margin("Device memory", record.device_peak_bytes, record.limits.device_bytes),
        _margin("Host memory", record.host_peak_bytes, record.limits.host_bytes),
        Tile("What limits it", bottleneck, _ceilings(record)),
    ]


def sentences(record: TuneRecord) -> dict[str, str]:
    """What the answer means, by what it is about."""
    return {"gain": snippet.baseline_gain(record), **advice(record), "search": record.stop_reason}


def origin(record: TuneLog | SweepRecord) -> str:
    """When it was tuned, where, and how long it took, in a line."""
    parts = []
    if record.started_at:
        parts.append("Tuned " + time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.started_at)))
    else:
        parts.append("Tuned")
    if record.machine.host:
        parts.append(f"on {record.machine.host}")
    if isinstance(record, TuneLog):
        parts.append(f"({record.device})")
        text = f"{counted(len(record.searched), 'trial')} of the search"
        text += f", {counted(len(record.runs), 'run')} after it" if record.runs else ""
    else:
        text = counted(len(record.cells), "cell")
    return f"{' '.join(parts)}. {text}, {format_seconds(record.seconds)} in all."


def alternatives(seen: TuneLog, found: list[tradeoff_plots.Alternative]) -> list[dict[str, str | bool]]:
    """The Pareto set as rows: what another choice gives and takes."""
    return [
        {
            "config": str(a.trial.config),
            "rate": format_rate(a.trial.measurement.samples_per_second or 0.0),
            "memory": format_bytes(a.memory_bytes),
            "memory_change": _change(a.memory_change, "more memory", "less memory"),
            "rate_change": _change(a.rate_change, "faster", "slower"),
            "known": a.memory_change is not None,
            "kwargs": ", ".join(f"{knob}={value!r}" for knob, value in a.trial.config.values().items()),
            "chosen": isinstance(seen, TuneRecord) and a.trial.config == seen.config,
        }
        for a in found
    ]


def machine(record: Machine, seen: TuneLog | None = None) -> dict[str, str]:
    """The machine, the workload and the versions."""
    told = {
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
    if seen is not None:
        device = seen.limits.device_bytes
        told["limits"] = (
            f"device {'none' if device is None else format_bytes(device)}, host {format_bytes(seen.limits.host_bytes)}"
        )
        told["trained on"] = seen.device
        if seen.description is not None:
            d = seen.description
            told |= {str(name): version for name, version in d.versions.items()}
            told["model"] = f"{d.parameter_count:,} parameters ({format_bytes(d.parameter_bytes)})"
            told["model"] += f", optimizer {format_bytes(d.optimizer_bytes)}"
            told["model"] += ", compiled by XLA" if d.jit_compile else ""
            told["input"] = f"{d.input_kind}, {format_bytes(d.sample_bytes)} a sample"
            told["input"] += f", {d.sample_count:,} samples" if d.sample_count else ""
            told["knobs tuned"] = ", ".join(d.knobs)
            told["shapes"] = d.shapes
            told["notices"] = " ".join(d.notices)
    return {name: text for name, text in told.items() if text}


def versions(record: SweepRecord) -> dict[str, str]:
    """Those that the first cell ran with of which they are known."""
    known = (cell.found.description for cell in record.cells if cell.found is not None)
    return next((dict(description.versions) for description in known if description is not None), {})


def problem(record: FailedTune) -> str:
    """Why there is no answer, as a sentence below a headline that says already that nothing fits."""
    text = record.problem.removeprefix("nothing fits: ")
    return text[:1].upper() + text[1:]


def needed(record: FailedTune) -> Tile | None:
    """What was needed against the limit; None where memory was not why."""
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
    speedup = record.speedup
    if record.config == speedup.baseline:
        return Tile("Against the baseline", "the baseline itself", "is already the fastest that fits")
    if speedup.ratio is None:
        return Tile(
            "Against the baseline",
            NONE,
            f"the baseline did not run to its end: {style.OUTCOMES[speedup.baseline_outcome]}",
        )
    interval = ""
    if speedup.low is not None and speedup.high is not None:
        interval = f"{speedup.low:.2f} to {speedup.high:.2f} with 95 % probability; "
    return Tile("Against the baseline", f"{speedup.ratio:.2f}×", f"{interval}baseline: {speedup.baseline}")


def _margin(label: str, peak: int | None, limit: int | None) -> Tile:
    if peak is None:
        return Tile(
            label, NONE, "not counted by this device" if limit is None else f"not read; limit {format_bytes(limit)}"
        )
    if limit is None:
        return Tile(label, format_bytes(peak), "no limit of its own")
    return Tile(
        label, f"{1 - peak / limit:.0%} free", f"peak {format_bytes(peak)} of {format_bytes(limit)}", share=peak / limit
    )


def _ceilings(record: TuneRecord) -> str:
    compute, inputs = record.compute_samples_per_second, record.input_samples_per_second
    if compute is None or inputs is None:
        return "the rates of model and input alone were not taken"
    alone = f"alone the model takes {format_rate(compute)} samples/s, the input makes {format_rate(inputs)}"
    if record.bottleneck == "compute" and inputs < compute:
        return f"{alone}; together they reach {format_rate(record.samples_per_second)}"
    return alone


def _change(change: float | None, more: str, less: str) -> str:
    if change is None:
        return NONE
    return "the same" if round(change, 2) == 0 else f"{abs(change):.0%} {more if change > 0 else less}"
