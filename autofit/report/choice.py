"""The answer of a tune: its key figures, and sentences that explain them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from autofit.records.result import KEPT_PAIRS, SHOWING_PAIRS, DecidedBy, Speedup, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig
from autofit.records.units import counted, format_bytes, format_rate
from autofit.report.advice import advice
from autofit.report.wording import outcome_label, shares

NO_GAIN = "no gain shown"
"""The gain of a result that is not shown to be faster than the baseline."""

NONE = "–"
"""A value that is missing."""

_DECIDED_BY = {
    DecidedBy.READINGS: "all readings together do not show it to be faster by more than the tolerance",
    DecidedBy.CONFIRMATION: "the confirming runs, which are longer and alternate with the baseline, decided against it",
    DecidedBy.FAILURE: "another run of it failed or took too much memory",
    DecidedBy.TIME: f"too little time was left to confirm it in {KEPT_PAIRS} pairs of runs",
}


@dataclass(frozen=True)
class Figure:
    """A key figure; `share` is the part of a limit that is used, from 0 to 1."""

    label: str
    value: str
    note: str = ""
    share: float | None = None

    def __str__(self) -> str:
        return f"{self.value}: {self.note}" if self.note else self.value


def figures(record: TuneRecord) -> list[Figure]:
    """The key figures of a result."""
    source = "confirmed in fresh processes" if record.choice.confirmed else "read once in the search: no time to confirm it"
    spread = "" if record.spread is None else f"±{record.spread:.0%}, "
    bottleneck, _, reason = advice(record)["bottleneck"].partition(": ")
    return [
        Figure("rate", f"{format_rate(record.samples_per_second)} samples/s", f"{spread}{source}"),
        gain(record),
        _memory("device memory", record.device_peak_bytes, record.limits.device_bytes),
        _memory("host memory", record.host_peak_bytes, record.limits.host_bytes),
        Figure("bottleneck", bottleneck, reason),
    ]


def sentences(record: TuneRecord) -> dict[str, str]:
    """What the key figures do not say, by subject."""
    texts = {
        "devices": shares(record),
        "not tuned": "; ".join(f"{knob}: {reason}" for knob, reason in record.untuned.items()),
        "why": why_not_highest(record),
        **advice(record),
        "search": record.stop_reason,
    }
    del texts["bottleneck"]  # a key figure
    return {subject: text for subject, text in texts.items() if text}


def gain(record: TuneRecord) -> Figure:
    """The gain over the baseline, with its interval; or the evidence that shows none."""
    speedup, challenger = record.speedup, record.choice.challenger
    if speedup.baseline_outcome is not Outcome.OK:
        return Figure("gain", NONE, f"the baseline ({speedup.baseline}) failed: {outcome_label(speedup.baseline_outcome)}")
    if record.config == speedup.baseline:
        if challenger is None:
            return Figure("gain", NO_GAIN, f"the baseline ({speedup.baseline}) is the choice itself")
        evidence = gain_evidence(record, challenger.config, challenger.samples_per_second, challenger.speedup)
        return Figure("gain", NO_GAIN, f"the baseline ({speedup.baseline}) keeps its place; {evidence}")
    if speedup.is_shown or speedup.is_loss:
        return Figure("gain", f"{speedup.ratio:.2f}x", f"{_interval(speedup)}; baseline: {speedup.baseline}")
    return Figure("gain", NO_GAIN, gain_evidence(record, record.config, record.samples_per_second, speedup))


def gain_evidence(record: TuneRecord, config: FitConfig, rate: float, speedup: Speedup) -> str:
    """What the pairs of runs say of a configuration that ran against the baseline and is not shown to be faster."""
    if speedup.ratio is None:
        return f"no time was left for a pair of runs with {config}"
    if speedup.is_loss:
        return f"{config} is slower, {speedup.ratio:.2f}x, {_interval(speedup)}"
    if speedup.is_shown:
        return f"{config} is {speedup.ratio:.2f}x as fast, but the gain may be within the tolerance, {_interval(speedup)}"
    reached = f"{config} reached {format_rate(rate)} samples/s{_baseline_rate(record)}"
    if speedup.pairs < SHOWING_PAIRS or speedup.low is None:
        return f"{reached}, but {counted(speedup.pairs, 'pair')} of runs cannot show a gain; {SHOWING_PAIRS} can"
    return f"{reached}, but the {_interval(speedup)} contains 1.0"


def why_not_highest(record: TuneRecord) -> str:
    """Why the configuration with the highest reading is not the choice; empty if it is."""
    passed = record.choice.passed_over
    if passed is None:
        return ""
    reading = f"{passed.config} read {format_rate(passed.samples_per_second)} samples/s once"
    return f"{reading}, but {_DECIDED_BY[passed.decided_by]}"


def _interval(speedup: Speedup) -> str:
    return f"95 % interval {speedup.low:.2f} to {speedup.high:.2f} from {counted(speedup.pairs, 'pair')} of runs"


def _baseline_rate(record: TuneRecord) -> str:
    baseline = record.speedup.baseline
    runs = [run.measurement for run in record.runs if run.stage is Stage.BASELINE and run.config == baseline]
    rates = [run.samples_per_second for run in runs if run.samples_per_second]
    return f", the baseline {format_rate(statistics.median(rates))}" if rates else ""


def _memory(label: str, peak_bytes: int | None, limit_bytes: int | None) -> Figure:
    limit = "no limit of its own" if limit_bytes is None else f"limit {format_bytes(limit_bytes)}"
    if peak_bytes is None:
        return Figure(label, NONE, f"this device's allocator reports no peak; {limit}")
    if limit_bytes is None:
        return Figure(label, f"peak {format_bytes(peak_bytes)}", limit)
    share = peak_bytes / limit_bytes
    return Figure(label, f"{1 - share:.0%} free", f"peak {format_bytes(peak_bytes)} of {format_bytes(limit_bytes)}", share)
