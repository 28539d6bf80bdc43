"""What else in a program depends on the batch size: what to adjust with an answer, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofit.records.description import BatchDependence
from autofit.records.result import Answer, TuneRecord
from autofit.records.units import counted
from autofit.workload.fit_options import FIT, STEPS_PER_EPOCH, VALIDATION_STEPS

# Batch normalization loses accuracy below this number of samples (Wu and He 2018,
# arXiv:1803.08494).
_FEW_TO_NORMALIZE = 16


def sizes_of(record: TuneRecord, answer: Answer) -> tuple[int, int] | None:
    """Return an answer's batch size and the user's own; None if training is the same with both."""
    now = answer.config.batch_size
    own = answer.speedup.baseline.batch_size
    if record.effective_batch_size is not None and record.batch_is_default:
        # the size that the user would train with
        own = record.effective_batch_size
    if record.call_source.call != FIT or not now or not own or now == own:
        return None
    return now, own


def adjustments_of(record: TuneRecord, answer: Answer) -> tuple[str, ...]:
    """Return a sentence on each part that trains differently with an answer's batch size."""
    sizes = sizes_of(record, answer)
    if sizes is None:
        return ()
    now, own = sizes
    source = record.call_source
    description = record.description
    sentences = list(changes_of_training(record, answer))
    steps = description.accumulation_steps
    if record.effective_batch_size is None and steps > 1:
        update = update_in_words(record, now, own)
        sentences.append(
            f"gradient_accumulation_steps={steps} counts batches: {update}"
        )
    for name in (STEPS_PER_EPOCH, VALIDATION_STEPS):
        given = source.fit_kwargs.get(name)
        value = answer.fit_kwargs.get(name)
        if given is not None and value not in (None, given):
            sentences.append(f"{name} counts batches: pass {value} instead of {given}")
    for name, count in description.literal_counts.items():
        sentences.append(
            f"{name}={count} is a number in {source.model}, and counts batches: "
            f"write {math.ceil(count * own / now)} instead"
        )
    sentences += [f"the batch size is also used in {use}" for use in description.uses]
    if names := ", ".join(description.batch_callbacks):
        sentences.append(f"after each batch runs {names}: {_epoch(record, now, own)}")
    return tuple(sentences)


def changes_of_training(record: TuneRecord, answer: Answer) -> Iterator[str]:
    """Return a sentence on each part with which a rule for the learning rate is wrong.

    Parts are those of the model, its loss and its optimizer.
    """
    if sizes := sizes_of(record, answer):
        for part in record.description.batch_dependences:
            if sentence := _sentence_on(part, record, *sizes):
                yield sentence


def update_in_words(record: TuneRecord, now: int, own: int) -> str:
    """Say how many samples an update averages with two batch sizes."""
    steps = record.description.accumulation_steps
    return f"an update averages {counted(steps * now, 'sample')} instead of {steps * own:,}"


def _sentence_on(part: BatchDependence, record: TuneRecord, now: int, own: int) -> str:
    if part.kind == "schedule":
        text = f"{part.name} counts train steps: {_epoch(record, now, own)}"
        if part.arguments:
            verb = "divide" if now > own else "multiply"
            ratio = max(now, own) / min(now, own)
            text += f"; {verb} {', '.join(part.arguments)} by {ratio:.4g}"
            if record.description.model_takes_batch:
                text += ", unless build_model computes them from batch_size"
        return text
    if part.kind == "normalization":
        devices = record.placement.count
        on_each = now // devices
        averaged = counted(on_each, "sample")
        if record.effective_batch_size is not None:
            return f"{part.name} still averages {averaged}"
        is_fewer = now <= own and on_each < _FEW_TO_NORMALIZE
        text = f"{part.name} averages {averaged} instead of {own // devices}"
        return text if is_fewer else ""
    if part.kind == "loss":
        return (
            f"the loss {part.name} is of a batch as a whole: of {now:,} samples instead "
            f"of {own:,}"
        )
    if part.kind == "sum":
        times = f"{now / own:.2g} times"
        return (
            f"the loss {part.name} adds up its samples: gradients are {times} as large"
        )
    return (
        f"{part.name} gets {counted(now, 'sample')} at a time instead of {own:,}: what it compares "
        "or adds up in a batch changes"
    )


def _epoch(record: TuneRecord, now: int, own: int) -> str:
    """Say how many train steps an epoch has, or how many times as many."""
    samples = record.description.sample_count
    if not samples:
        return f"an epoch has {own / now:.2g} times as many"
    return f"an epoch has {math.ceil(samples / now):,} instead of {math.ceil(samples / own):,}"
