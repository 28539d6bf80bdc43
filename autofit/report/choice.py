"""The result of a tune in words: the answers with their gains, key figures, and advice.

The console and the page show these texts, and say nothing of their own about a result.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.epoch import Cause
from autofit.records.knobs import FitConfig
from autofit.records.result import Answer, Speedup, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Limits, Measurement
from autofit.records.units import (
    counted,
    format_bytes,
    format_rate,
    format_seconds,
    format_spread,
)
from autofit.report.adjustments import (
    adjustments_of,
    changes_of_training,
    update_in_words,
)
from autofit.workload import accumulation
from autofit.workload.fit_options import FIT, PREDICT

# text in place of a missing value
NONE = "–"
# of an answer that is not likely to be faster than the baseline
NO_GAIN = "no gain"
# Probability of being faster below which no gain is named. That of an answer is lower than the one
# which replaces the baseline only if the baseline is not in the space, or if the largest batch was
# asked for.
_EVEN = 0.5
_PARTS: dict[Cause, str] = {
    "data": "waiting for data",
    "contention": "data and step compete",
    "compiling": "compiling new shapes",
    "step": "the step itself",
    "keras": "Keras between steps",
    "start": "start of an epoch",
    "validation": "validation",
    "first_step": "the first step, once",
    "other_work": "other work on this machine",
}
# of an epoch: a part that takes less is not named
_LEAST_PART = 0.1


@dataclass(frozen=True)
class Headline:
    """An answer in words: its gain over the baseline or why none is shown, and what it changes.

    `use` is what its code is for, and `adjustments` are what else depends on its batch size.
    """

    answer: Answer
    label: str
    gain: str
    note: str
    use: str
    adjustments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.gain}: {'; '.join(filter(None, (str(self.answer.config), self.note)))}"


def headlines(record: TuneRecord) -> list[Headline]:
    """Return the answers in words.

    That of the own batch size is first, and the fastest config follows if it is another one.
    """
    own = record.same_batch
    fastest = record.fastest
    if own is None or own.config == fastest.config:
        return [_headline(record, fastest, "it")]
    return [
        _headline(record, own, "your batch size", "result.same_batch.fit_kwargs"),
        _headline(record, fastest, "the fastest", "result.fit_kwargs"),
    ]


def _headline(
    record: TuneRecord, answer: Answer, which: str, code: str = ""
) -> Headline:
    config = answer.config
    label = "fastest"
    if config != record.fastest.config:
        label = (
            f"at batch {config.batch_size}"
            if record.batch_is_default
            else "at your batch"
        )
    notes = [_consequences(record, answer)]
    if answer.needed_seconds:
        # one figure, which allows what either answer lacked
        answers = filter(None, (record.same_batch, record.fastest))
        needed = max(each.needed_seconds or 0.0 for each in answers)
        notes.append(
            f"too little time was left to compare more: raise max_seconds to {needed:.0f}"
        )
    gain = NO_GAIN
    baseline = answer.speedup.baseline
    baseline_outcome = answer.speedup.baseline_outcome
    if baseline_outcome is not Outcome.OK:
        gain = NONE
        notes.append(
            f"the baseline ({baseline}) failed: {outcome_label(baseline_outcome)}"
        )
    elif config != baseline:
        gain = gain_in_words(answer)
    elif all(trial.config == config for trial in record.searched):
        notes.append("only your present configuration was tried")
    source = record.call_source
    verb = "train" if source.call == FIT else source.call
    use = f"To {verb} with {which}"
    if source.script:
        use += "" if answer.code else ", nothing changes"
    elif code:
        use += f" ({code} and so on)"
    note = "; ".join(filter(None, notes))
    return Headline(answer, label, gain, note, use, adjustments_of(record, answer))


def gain_in_words(answer: Answer) -> str:
    """Say how sure it is that an answer beats the baseline, and by how much; both have run."""
    speedup = answer.speedup
    probability = answer.probability or 0.0
    if speedup.is_shown or speedup.is_loss:
        return f"shown: {ratio_in_words(speedup)}"
    if probability < _EVEN:
        return NO_GAIN
    return f"likely, {min(9, int(10 * probability))} in 10: {ratio_in_words(speedup)}"


def baseline(record: TuneRecord) -> Answer | None:
    """Return the figures of the baseline's runs, without a spread.

    None if none of them finished.
    """
    config = record.speedup.baseline
    finished = [
        trial
        for trial in record.readings
        if trial.config == config and trial.samples_per_second
    ]
    beside = [trial for trial in finished if trial.stage is Stage.BESIDE]
    runs = [trial.measurement for trial in beside or finished]
    if not runs:
        return None
    rate = statistics.median(run.samples_per_second or 0.0 for run in runs)
    device_bytes = max(run.device_peak_bytes or 0 for run in runs)
    host_bytes = max(run.host_peak_bytes or 0 for run in runs)
    return Answer(
        config, rate, None, device_bytes or None, host_bytes or None, record.speedup
    )


def figures(record: TuneRecord, answer: Answer) -> dict[str, str]:
    """Return the rate of an answer, and the memory that it takes as far as that could be read."""
    source = "confirmed in fresh processes"
    if not answer.confirmed:
        source = "read once in the search, not confirmed"
    elif answer.config != answer.speedup.baseline and not answer.speedup.pairs:
        runs = [
            run for run in _runs_of(record, answer.config) if run.samples_per_second
        ]
        source = f"by all readings, {counted(len(runs), 'run')} in fresh processes among them"
    spread = "" if answer.spread is None else f"{format_spread(answer.spread)}, "
    rows = {
        "rate": f"{format_rate(answer.samples_per_second)} samples/s: {spread}{source}"
    }
    for memory in ("device", "host"):
        peak = getattr(answer, f"{memory}_peak_bytes")
        limit = getattr(record.limits, f"{memory}_bytes")
        # without a limit, as on a CPU, what an allocator counts is host memory, too
        if peak is not None and limit is not None:
            rows[f"{memory} memory"] = (
                f"{1 - peak / limit:.0%} free: peak {format_bytes(peak)} of {format_bytes(limit)}"
            )
    return rows


def _runs_of(record: TuneRecord, config: FitConfig) -> list[Measurement]:
    return [run.measurement for run in record.runs if run.config == config]


def advice(record: TuneRecord) -> dict[str, str]:
    """Return a sentence on each subject besides the answers and their figures."""
    source = record.call_source
    description = record.description
    before = baseline(record)
    rate = (
        ""
        if before is None
        else f": {format_rate(before.samples_per_second)} samples/s"
    )
    texts = {
        "baseline": f"{record.speedup.baseline}{rate}",
        "bottleneck": bottleneck_sentence(record),
        "devices": share_on_each(record),
    }
    if source.call == PREDICT:
        texts["outputs"] = (
            "the outputs that predict keeps until it ends are not counted in the memory"
        )
    texts["epoch"] = _epoch(record)
    for trial in (*record.runs, *record.searched):
        if trial.config == record.config and trial.measurement.allocator_notice:
            texts.setdefault("allocator", trial.measurement.allocator_notice)
    untuned = (f"{knobs}: {reason}" for knobs, reason in description.untuned.items())
    texts["not tuned"] = "; ".join(untuned)
    texts["other work"] = _other_work(record)
    if left_out := ", ".join(description.left_out_callbacks):
        texts["callbacks"] = (
            f"trials left out {left_out}: their time and memory are not in these figures"
        )
    tried = counted(len(record.searched), "configuration")
    texts["search"] = (
        f"{record.stop_reason}; {tried} tried, {format_seconds(record.seconds)} in all"
    )
    return {subject: text for subject, text in texts.items() if text}


def _epoch(record: TuneRecord) -> str:
    own = record.speedup.baseline
    readings = {config: _runs_of(record, config) for config in (own, record.config)}
    validations = {
        config: next(
            (run.validation_seconds for run in runs if run.validation_seconds), 0.0
        )
        for config, runs in readings.items()
    }
    # an epoch with its validation cannot be compared with one without
    is_validated = all(validations.values())
    totals = []
    of_it = ""
    unread = ""
    for config, runs in readings.items():
        unread = next(
            (run.epoch_gap_unread for run in runs if run.epoch_gap_unread), unread
        )
        seconds = [run.epoch_seconds for run in runs if run.epoch_seconds is not None]
        if seconds:
            total = statistics.median(seconds)
            gap = statistics.median(run.epoch_gap_seconds or 0.0 for run in runs)
            of_it = f"{brief(gap)} between epochs"
            if is_validated:
                total += validations[config]
                of_it = f"{brief(validations[config])} validation, {of_it}"
            totals.append(f"{brief(total)} {'now' if config == own else 'then'}")
    if totals:
        return f"{', '.join(totals)}; of it {of_it}"
    return f"the gap between epochs is not in the rate: {unread}" if unread else ""


def brief(seconds: float) -> str:
    """Format a duration; one below a second has two digits."""
    return format_seconds(seconds) if seconds >= 1 else f"{seconds:.2g} s"


def _consequences(record: TuneRecord, answer: Answer) -> str:
    now = answer.config.batch_size
    before = answer.speedup.baseline.batch_size
    if record.call_source.call != FIT or not now or not before:
        return ""
    if record.effective_batch_size is not None:
        steps = accumulation.steps_of(now, record.effective_batch_size)
        if steps > 1 and any(changes_of_training(record, answer)):
            return f"an update averages the gradients of {steps:,} batches of {now:,}"
        return f"an update averages {counted(record.effective_batch_size, 'sample')}, as requested"
    if now == before:
        same = "the same updates of the same size"
        if record.batch_is_default:
            same += "; that is Keras's default: say yours with batch_size=N"
        return same
    update = update_in_words(record, now, before)
    if any(changes_of_training(record, answer)):
        return f"{update}: compare the validation loss"
    name = record.description.optimizer
    # with SGD, the rate grows with the batch size; with others, with its square root
    factor = now / before if name == "SGD" else math.sqrt(now / before)
    with_it = f"with {name} " if name else ""
    rate = f"{with_it}try {factor:.2g} times the learning rate"
    return f"{update}: {rate}, and compare the validation loss"


def ratio_in_words(speedup: Speedup) -> str:
    """Return a ratio with as many digits as its interval bears, and the interval."""
    ratio, low, high = speedup.ratio, speedup.low, speedup.high
    if ratio is None or low is None or high is None:
        return NONE
    half_width = max(high - low, 1e-6 * ratio) / 2
    reliable = 2 + math.floor(math.log10(ratio / half_width))
    digits = min(3, max(1, reliable))
    rounded = "about " if digits == 1 else ""
    of_ends = max(2, digits)
    interval = f"{_with_digits(low, of_ends)} to {_with_digits(high, of_ends)}"
    return f"{rounded}{_with_digits(ratio, digits)}x ({interval})"


def _with_digits(value: float, digits: int) -> str:
    decimals = 0
    if value > 0:
        decimals = digits - 1 - math.floor(math.log10(value))
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def outcome_label(outcome: Outcome) -> str:
    """Return the label of an outcome: ok, device OOM, host OOM, timeout, crashed or error."""
    return outcome.value.replace("_oom", " OOM")


def limits_in_words(limits: Limits) -> str:
    """Return both limits in one line."""
    device = limits.device_bytes
    of_device = "no separate limit" if device is None else format_bytes(device)
    return f"device {of_device}, host {format_bytes(limits.host_bytes)}"


def model_in_words(d: Description) -> str:
    """Return the size of the model and of a sample, and the kind of input, in one line."""
    sample = format_bytes(d.sample_bytes)
    return f"{d.parameter_count:,} parameters, {sample} per sample, {d.input_kind}"


def share_on_each(record: TuneRecord) -> str:
    """Return the share of a batch on each of several devices; empty for one device."""
    batch = record.config.batch_size
    devices = record.placement.count
    if devices == 1 or not batch:
        return ""
    return f"batch {batch} is global: {batch // devices} on each of {devices} devices"


def part_in_words(part: Cause) -> str:
    """Return what an epoch spends time on, in words."""
    return _PARTS[part]


def bottleneck_sentence(record: TuneRecord) -> str:
    """Return the parts of an epoch that take most of it, and the rates of one run that show it."""
    epoch = record.epoch
    if epoch is None:
        return ""
    shares = [
        (seconds / epoch.seconds, part_in_words(part))
        for part, seconds in epoch.steady_parts.items()
    ]
    large = sorted((each for each in shares if each[0] >= _LEAST_PART), reverse=True)
    text = ", ".join(f"{words} {share:.0%}" for share, words in large)
    text += " of an epoch"
    compute = epoch.run.alone("compute")
    inputs = epoch.run.alone("input")
    if compute and inputs:
        text += (
            f"; model alone {format_rate(compute)} samples/s, "
            f"input alone {format_rate(inputs)}"
        )
    has_workers = "workers" in record.description.knobs
    runs_on = epoch.largest in ("step", "keras")
    if runs_on and has_workers and (inputs or 0.0) >= (compute or math.inf):
        text += "; more workers would not help"
    return text


def _other_work(record: TuneRecord) -> str:
    disturbed = []
    throttles: set[str] = set()
    runs = record.readings
    for trial in runs:
        conditions = trial.measurement.conditions
        if conditions is not None:
            throttles |= set(conditions.throttles)
            if conditions.is_disturbed:
                disturbed.append(conditions)
    sentences = []
    if disturbed:
        worst = max(disturbed, key=lambda conditions: conditions.other_cores or 0.0)
        sentences.append(
            f"other programs used the machine in {len(disturbed)} of {counted(len(runs), 'run')} "
            f"(in the worst run, {worst.other_work}): rates are lower than on an idle machine, and "
            "gains are less certain"
        )
    if throttles:
        reasons = ", ".join(sorted(throttles))
        sentences.append(
            f"the GPU lowered its clock while rates were measured ({reasons})"
        )
    return ". ".join(sentences)
