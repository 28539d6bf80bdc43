"""The choice in words: its gain over the baseline, and why it is not the configuration with the highest reading."""

from __future__ import annotations

import statistics

from autofit.records.result import KEPT_PAIRS, SHOWING_PAIRS, DecidedBy, Grounds, RateEstimate, Speedup, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig
from autofit.records.units import counted, format_rate

NO_GAIN = "no gain shown"
"""Said of every result that was not shown to be faster than the baseline."""

_READ_IN = {
    Stage.SEARCH: "in the search",
    Stage.FINALIST: "when finalists ran again",
    Stage.CHOSEN: "in one confirming run",
    Stage.BASELINE: "in one run of the baseline",
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
    grounds = record.choice.grounds
    if grounds is None:
        return ""
    reading = f"{grounds.passed_over} read {format_rate(grounds.reading_samples_per_second)} samples/s once, "
    reading += _READ_IN[grounds.stage]
    if grounds.decided_by is DecidedBy.FAILURE:
        return f"{reading}, but another run of it failed or took too much memory"
    if grounds.decided_by is DecidedBy.CONFIRMATION:
        return f"{reading}; the confirming runs decide, in which each runs longer, in turn with the baseline"
    if grounds.decided_by is DecidedBy.TIME:
        return f"{reading}, but the time left was too short to confirm it in {KEPT_PAIRS} pairs of runs"
    basis = "the model of the rate, fitted to all trials,"
    if grounds.decided_by is DecidedBy.RERUNS:
        basis = "the repeated runs, weighed with the model of the rate from all trials,"
    if grounds.estimate is None or grounds.chosen_estimate is None:
        return f"{reading}; {basis} decide{'s' if grounds.decided_by is DecidedBy.ESTIMATE else ''}"
    verb = "expect" if grounds.decided_by is DecidedBy.RERUNS else "expects"
    challenger = record.choice.challenger
    chosen = "of the choice" if challenger is None else f"of {challenger.config}, which ran against the baseline"
    estimates = f"{_estimate(grounds.estimate)} there and {_estimate(grounds.chosen_estimate)} {chosen}"
    return f"{reading}; {basis} {verb} {estimates}{_tie(grounds)}"


def _tie(grounds: Grounds) -> str:
    """What decides where the estimate of the choice is the lower one."""
    estimate, chosen = grounds.estimate, grounds.chosen_estimate
    if estimate is None or chosen is None or chosen.samples_per_second >= estimate.samples_per_second:
        return ""
    if chosen.samples_per_second < (1 - grounds.tolerance) * estimate.samples_per_second:
        return ""
    return f": within the tolerance of {100 * grounds.tolerance:.3g}%, so the nearer to the baseline is taken"


def _estimate(estimate: RateEstimate) -> str:
    return f"{format_rate(estimate.samples_per_second)} ±{estimate.deviation:.0%}"


def _interval(speedup: Speedup) -> str:
    return f"95 % interval {speedup.low:.2f} to {speedup.high:.2f} from {counted(speedup.pairs, 'pair')} of runs"


def _beside(record: TuneRecord, baseline: FitConfig) -> str:
    """The rate of the baseline's runs."""
    runs = [run.measurement for run in record.runs if run.stage is Stage.BASELINE and run.config == baseline]
    rates = [run.samples_per_second for run in runs if run.samples_per_second]
    return f" against {format_rate(statistics.median(rates))} of the baseline" if rates else ""
