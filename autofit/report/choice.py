"""The result of a tune in words: the answers with their gains, key figures, and advice.

The console and the page show these texts, and say nothing of their own about a result.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autofit.records.description import Description
from autofit.records.result import Answer, Speedup, TuneRecord
from autofit.records.states import Outcome, Stage
from autofit.records.trial import Limits
from autofit.records.units import counted, format_bytes, format_rate, format_seconds, format_spread
from autofit.report.adjustments import adjustments_of, changes_of_training, update_in_words
from autofit.workload import accumulation
from autofit.workload.fit_options import FIT, PREDICT

NONE = "–"  # text in place of a missing value
NO_GAIN = "no gain"  # if the answer is not likely to be faster than the baseline
# probability of being faster below which no gain is named; that of an answer is lower than the one which replaces the
# baseline only if the baseline is not in the space, or if the largest batch was asked for
_EVEN = 0.5
_OUTPUTS = "the outputs that predict keeps until it ends are not counted in the memory"
_MUCH_OF_EPOCH = 0.2  # that passes before its steps begin: more is said
_LINEAR = (
    "SGD",
)  # optimizers whose learning rate grows with the batch size; that of others grows with its square root


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
    """Return the answers in words: that of the own batch size first, and the fastest config if it is another one."""
    own, fastest = record.same_batch, record.fastest
    if own is None or own.config == fastest.config:
        return [_headline(record, fastest, "it")]
    which = "your batch size (result.same_batch.fit_kwargs and so on)"
    return [
        _headline(record, own, which),
        _headline(record, fastest, "the fastest (result.fit_kwargs and so on)"),
    ]


def _headline(record: TuneRecord, answer: Answer, which: str) -> Headline:
    speedup, config, label = answer.speedup, answer.config, "fastest"
    if config != record.fastest.config:
        label = f"at batch {config.batch_size}" if record.batch_is_default else "at your batch"
    gain, reason = NO_GAIN, ""
    if speedup.baseline_outcome is not Outcome.OK:
        gain, reason = (
            NONE,
            f"the baseline ({speedup.baseline}) failed: {outcome_label(speedup.baseline_outcome)}",
        )
    elif config != speedup.baseline:
        gain = gain_in_words(answer)
    elif all(trial.config == config for trial in record.searched):
        reason = "only your present configuration was tried"
    # one figure, which allows what either answer lacked
    needed = max(each.needed_seconds or 0.0 for each in (record.same_batch, record.fastest) if each)
    longer = (
        f"too little time was left to compare more: raise max_seconds to {needed:.0f}"
        if answer.needed_seconds
        else ""
    )
    note = "; ".join(filter(None, (_consequences(record, answer), longer, reason)))
    verb = "train" if record.call_source.call == "fit" else record.call_source.call
    use = f"To {verb} with {which}"
    if record.call_source.script:
        name = which.partition(" (")[0]
        use = f"To train with {name}" + ", nothing changes" * (not answer.code)
    return Headline(answer, label, gain, note, use, adjustments_of(record, answer))


def gain_in_words(answer: Answer) -> str:
    """Say how sure it is that an answer is faster than the baseline, and by how much; both have run."""
    speedup, probability = answer.speedup, answer.probability or 0.0
    if speedup.is_shown or speedup.is_loss:
        return f"shown: {ratio_in_words(speedup)}"
    if probability < _EVEN:
        return NO_GAIN
    return f"likely, {min(9, int(10 * probability))} in 10: {ratio_in_words(speedup)}"


def baseline(record: TuneRecord) -> Answer | None:
    """Return the figures of the baseline's runs, without a spread; None if none of them finished."""
    finished = [
        trial
        for trial in (*record.runs, *record.searched)
        if trial.config == record.speedup.baseline and trial.samples_per_second
    ]
    beside = [trial for trial in finished if trial.stage is Stage.BESIDE]
    runs = [trial.measurement for trial in beside or finished]
    if not runs:
        return None
    rate = statistics.median(m.samples_per_second or 0.0 for m in runs)
    device, host = (
        max(getattr(m, f"{memory}_peak_bytes") or 0 for m in runs) or None
        for memory in ("device", "host")
    )
    return Answer(record.speedup.baseline, rate, None, device, host, record.speedup)


def figures(record: TuneRecord, answer: Answer) -> dict[str, str]:
    """Return the rate of an answer, and the memory that it takes as far as that could be read."""
    runs = [run for run in record.runs if run.config == answer.config and run.samples_per_second]
    source = "confirmed in fresh processes"
    if not answer.confirmed:
        source = "read once in the search, not confirmed"
    elif answer.config != answer.speedup.baseline and not answer.speedup.pairs:
        source = f"by all readings, {counted(len(runs), 'run')} in fresh processes among them"
    spread = "" if answer.spread is None else f"{format_spread(answer.spread)}, "
    rows = {"rate": f"{format_rate(answer.samples_per_second)} samples/s: {spread}{source}"}
    for memory in ("device", "host"):
        peak, limit = (
            getattr(answer, f"{memory}_peak_bytes"),
            getattr(record.limits, f"{memory}_bytes"),
        )
        if (
            peak is not None and limit is not None
        ):  # what an allocator counts on a CPU is host memory, too
            rows[f"{memory} memory"] = (
                f"{1 - peak / limit:.0%} free: peak {format_bytes(peak)} of {format_bytes(limit)}"
            )
    return rows


def advice(record: TuneRecord) -> dict[str, str]:
    """Return what to know about a tune besides its answers and their figures: a sentence on each subject."""
    tried, before = counted(len(record.searched), "configuration"), baseline(record)
    rate = "" if before is None else f": {format_rate(before.samples_per_second)} samples/s"
    left_out = ", ".join(record.description.left_out_callbacks)
    ran = (trial for trial in (*record.runs, *record.searched) if trial.config == record.config)
    notices = (trial.measurement.allocator_notice for trial in ran)
    texts = {
        "baseline": f"{record.speedup.baseline}{rate}",
        "bottleneck": bottleneck_sentence(record),
        "devices": share_on_each(record),
        "outputs": _OUTPUTS if record.call_source.call == PREDICT else "",
        "epoch": _epoch(record),
        "allocator": next(filter(None, notices), ""),
        "not tuned": "; ".join(
            f"{knobs}: {reason}" for knobs, reason in record.description.untuned.items()
        ),
        "other work": _other_work(record),
        "callbacks": f"trials left out {left_out}: their time and memory are not in these figures"
        if left_out
        else "",
        "search": f"{record.stop_reason}; {tried} tried, {format_seconds(record.seconds)} in all",
    }
    return {subject: text for subject, text in texts.items() if text}


def _epoch(record: TuneRecord) -> str:
    baseline, totals, parts, unread = record.speedup.baseline, [], "", ""
    readings = {
        config: [run.measurement for run in record.runs if run.config == config]
        for config in (baseline, record.config)
    }
    validations = {
        config: next((m.validation_seconds for m in runs if m.validation_seconds), 0.0)
        for config, runs in readings.items()
    }
    is_validated = all(
        validations.values()
    )  # an epoch with its validation cannot be compared with one without
    for config, runs in readings.items():
        if seconds := [each for m in runs if (each := m.epoch_seconds) is not None]:
            validation = validations[config] if is_validated else 0.0
            gap = statistics.median(m.epoch_gap_seconds or 0.0 for m in runs)
            totals.append(
                f"{_brief(statistics.median(seconds) + validation)} {'now' if config == baseline else 'then'}"
            )
            parts = (
                f"{_brief(validation)} validation, " * bool(validation)
                + f"{_brief(gap)} between epochs"
            )
        unread = next((m.epoch_gap_unread for m in runs if m.epoch_gap_unread), unread)
    if totals:
        return f"{', '.join(totals)}; of it {parts}"
    return f"the gap between epochs is not in the rate: {unread}" if unread else ""


def _brief(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds:.2g} s"


def _consequences(record: TuneRecord, answer: Answer) -> str:
    now, before = answer.config.batch_size, answer.speedup.baseline.batch_size
    if record.call_source.call != FIT or not now or not before:
        return ""
    changes = any(changes_of_training(record, answer))
    if record.effective_batch_size is not None:
        steps = accumulation.steps_of(now, record.effective_batch_size)
        if changes and steps > 1:
            return f"an update averages the gradients of {steps:,} batches of {now:,}"
        return f"an update averages {counted(record.effective_batch_size, 'sample')}, as requested"
    if now == before:
        default = (
            "; that is Keras's default: say yours with batch_size=N"
            if record.batch_is_default
            else ""
        )
        return f"the same updates of the same size{default}"
    update = update_in_words(record, now, before)
    if changes:
        return f"{update}: compare the validation loss"
    name = record.description.optimizer
    factor = now / before if name in _LINEAR else math.sqrt(now / before)
    with_it = f"with {name} " if name else ""
    return f"{update}: {with_it}try {factor:.2g} times the learning rate, and compare the validation loss"


def ratio_in_words(speedup: Speedup) -> str:
    """Return a ratio with as many digits as its interval bears, and the interval."""
    ratio, low, high = speedup.ratio, speedup.low, speedup.high
    if ratio is None or low is None or high is None:
        return NONE
    digits = min(3, max(1, 2 + math.floor(math.log10(2 * ratio / max(high - low, 1e-6 * ratio)))))
    rounded = "about " if digits == 1 else ""
    low_text, high_text = (_with_digits(end, max(2, digits)) for end in (low, high))
    return f"{rounded}{_with_digits(ratio, digits)}x ({low_text} to {high_text})"


def _with_digits(value: float, digits: int) -> str:
    decimals = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def outcome_label(outcome: Outcome) -> str:
    """Return the label of an outcome: ok, device OOM, host OOM, timeout, crashed or error."""
    return outcome.value.replace("_oom", " OOM")


def limits_in_words(limits: Limits) -> str:
    """Return both limits in one line."""
    device = (
        "no separate limit" if limits.device_bytes is None else format_bytes(limits.device_bytes)
    )
    return f"device {device}, host {format_bytes(limits.host_bytes)}"


def model_in_words(d: Description) -> str:
    """Return the size of the model and of a sample, and the kind of input, in one line."""
    return f"{d.parameter_count:,} parameters, {format_bytes(d.sample_bytes)} per sample, {d.input_kind}"


def share_on_each(record: TuneRecord) -> str:
    """Return the share of a batch on each of several devices; empty for one device."""
    batch, devices = record.config.batch_size, record.placement.count
    return (
        ""
        if devices == 1 or not batch
        else f"batch {batch} is global: {batch // devices} on each of {devices} devices"
    )


def bottleneck_sentence(record: TuneRecord) -> str:
    """Return the bottleneck, a colon, and the rates that show it; all rates are from the same run."""
    compute, inputs, bottleneck = (
        record.compute_samples_per_second,
        record.input_samples_per_second,
        record.bottleneck,
    )
    label = f"{bottleneck}-bound" if bottleneck in ("compute", "input") else bottleneck
    rates = {"model": compute, "input": inputs}
    if compute is None or inputs is None:
        read = [
            f"the {part} alone reached {format_rate(rate)} samples/s"
            for part, rate in rates.items()
            if rate
        ]
        whole = f"{record.call_source.call} {format_rate(record.samples_per_second)}"
        if not read:
            return f"{label}: model and input were not timed alone"
        return f"{label}: {', '.join((*read, whole))}"
    # the run that timed both may have been slower as a whole than the others
    together = max(record.ceilings_run_samples_per_second or 0.0, record.samples_per_second)
    has_workers = "workers" in record.description.knobs
    consequence = {
        "compute": "; more workers would not help" if inputs >= compute and has_workers else "",
        "contention": f", together {format_rate(together)}: they compete for cores or memory bandwidth",
    }
    alone = f"model alone {format_rate(compute)} samples/s, input alone {format_rate(inputs)}"
    gap = 1 - record.samples_per_second / together
    epoch = (
        f"; {gap:.0%} of an epoch passes before the steps timed here"
        if gap > _MUCH_OF_EPOCH
        else ""
    )
    return f"{label}: {alone}{consequence.get(bottleneck, '')}{epoch}"


def _other_work(record: TuneRecord) -> str:
    runs = (*record.searched, *record.runs)
    timed = [conditions for trial in runs if (conditions := trial.measurement.conditions)]
    disturbed = [conditions for conditions in timed if conditions.is_disturbed]
    throttles = ", ".join(
        sorted({reason for conditions in timed for reason in conditions.throttles})
    )
    sentences = []
    if disturbed:
        worst = max(disturbed, key=lambda conditions: conditions.other_cores or 0.0)
        sentences.append(
            f"other programs used the machine in {len(disturbed)} of {counted(len(runs), 'run')} (in the worst run, "
            f"{worst.other_work}): rates are lower than on an idle machine, and gains are less certain"
        )
    if throttles:
        sentences.append(f"the GPU lowered its clock while rates were measured ({throttles})")
    return ". ".join(sentences)
