"""The choice in words: its gain over the baseline, and why it is not the configuration with the highest reading."""

from __future__ import annotations

import statistics

from autofit.records.result import KEPT_PAIRS, SHOWING_PAIRS, DecidedBy, Speedup, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig
from autofit.records.units import counted, format_rate

NO_GAIN = "no gain shown"
"""Said of every result that was not shown to be faster than the baseline."""

_DECIDED_BY = {
    DecidedBy.READINGS: "all readings together do not show it to be faster by more than the tolerance",
    DecidedBy.CONFIRMATION: "the confirming runs, which are longer and in turn with the baseline, decided against it",
    DecidedBy.FAILURE: "another run of it failed or took too much memory",
    DecidedBy.TIME: f"too little time was left to confirm it in {KEPT_PAIRS} pairs of runs",
}


def gain_figure(record: TuneRecord, times: str = "x") -> str | None:
    """The gain in one word, or that none is shown; None where the baseline failed, so that nothing is compared."""
    speedup = record.speedup
    if speedup.baseline_outcome is not Outcome.OK:
        return None
    return f"{speedup.ratio:.2f}{times}" if speedup.is_shown or speedup.is_loss else NO_GAIN


def gain_sentence(record: TuneRecord) -> str:
    """The gain over the baseline, or the evidence that shows none."""
    speedup = record.speedup
    baseline = f"the baseline ({speedup.baseline})"
    if record.config == speedup.baseline:
        if record.choice.challenger is None:
            return f"{NO_GAIN}: {baseline} is the choice itself"
        return f"{NO_GAIN}: {baseline} keeps its place; {gain_evidence(record)}"
    if speedup.baseline_outcome is not Outcome.OK:
        return f"{baseline} failed: {speedup.baseline_outcome.value}"
    if speedup.is_shown:
        return f"{speedup.ratio:.2f}x {baseline}, {_interval(speedup)}"
    return f"{NO_GAIN} over {baseline}: {gain_evidence(record)}"


def gain_evidence(record: TuneRecord) -> str:
    """What the pairs of runs say of the configuration that ran against the baseline."""
    challenger = record.choice.challenger
    config, rate, speedup = record.config, record.samples_per_second, record.speedup
    if challenger is not None:
        config, rate, speedup = challenger.config, challenger.samples_per_second, challenger.speedup
    if speedup.ratio is None:
        return f"no time was left for a pair of runs with {config}"
    if speedup.is_loss:
        return f"{config} is slower, {speedup.ratio:.2f}x, {_interval(speedup)}"
    if speedup.is_shown:
        return f"{config} is faster, {speedup.ratio:.2f}x, but not surely by more than the tolerance, {_interval(speedup)}"
    reached = f"{config} reached {format_rate(rate)} samples/s{_beside(record, speedup.baseline)}"
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


def _beside(record: TuneRecord, baseline: FitConfig) -> str:
    """The rate of the baseline's runs."""
    runs = [run.measurement for run in record.runs if run.stage is Stage.BASELINE and run.config == baseline]
    rates = [run.samples_per_second for run in runs if run.samples_per_second]
    return f" against {format_rate(statistics.median(rates))} of the baseline" if rates else ""
