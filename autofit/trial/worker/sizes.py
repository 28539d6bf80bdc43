"""Find out whether a workload takes batches of other sizes; loads Keras."""

from __future__ import annotations

from dataclasses import replace

from psutil import Process

from autofit.records.states import Phase
from autofit.trial.worker.bench import Bench
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.plan import Plan
from autofit.workload.binding import resolve_reference
from autofit.workload.inputs import tfdata
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.kinds import open_input


def why_data_has_one_size(bench: Bench) -> str:
    """Return why the data makes batches of one size only; empty if it makes others, too."""
    data = bench.data
    asked = bench.context.spec.config.batch_size
    lengths = [length_of(leaf) for leaf in leaves(data.batch())]
    if asked is None or data.fit_makes_batches or not fits_twice(bench.context):
        return ""
    # the data set may be smaller than one batch
    fewer = max(1, min(asked, *lengths) // 2)
    try:
        smaller = _opened_again(bench, fewer)
        again = [length_of(leaf) for leaf in leaves(smaller.batch())]
        # data may draw any number of batches, but a length that was computed for this size is too
        # long for a larger one
        is_suspect = (
            data.computes_length and smaller.epoch_batches == data.epoch_batches
        )
        larger = _opened_again(bench, 2 * asked) if is_suspect else data
    except Exception:
        # data that cannot make such small or large batches does follow the knob
        return ""
    if again == lengths and fewer not in lengths:
        return (
            f"the data makes batches of {data.batch_samples} samples for any batch_size. Use the "
            "argument batch_size in the function that makes the data, or fix batch_size in "
            "data_kwargs"
        )
    try:
        larger.sample_count()  # it reads the last batch
    except Exception:
        return (
            "its length does not follow batch_size. Compute the number of batches in __len__, from "
            "the present batch_size"
        )
    return ""


def why_step_has_one_size(bench: Bench, traced_size: int | None) -> str:
    """Return why a step takes only the size that it was traced for; empty if it takes another."""
    if traced_size is None or not fits_twice(bench.context):
        return ""
    size = traced_size // 2 or 2
    try:
        data = _opened_again(bench, size)
        bench.play(Plan.of_one_step(data, size, Phase.OPENING_AGAIN))
    except Exception:  # the user's code, which need not take this size
        return (
            f"the train step accepts only batches of {traced_size} samples. Give build_model a "
            "parameter batch_size, which gets each size; or remove batch_size from the model's "
            "Input; or take the batch size from the data in train_step (ops.shape(x)[0])"
        )
    return ""


def fits_twice(context: TrialContext) -> bool:
    """Return whether the data may be opened again: the memory that it may hold must fit twice."""
    held_bytes = Process().memory_info().rss
    return 2 * held_bytes <= context.spec.limits.host_bytes


def _opened_again(bench: Bench, batch_size: int) -> FitInput:
    kept = dict(vars(tfdata.reserved))
    config = replace(bench.context.spec.config, batch_size=batch_size)
    # The data need not open at this size, so an error is not reported. Neither its memory nor what
    # its caches leave out counts twice.
    bench.context.enter(Phase.OPENING_AGAIN)
    try:
        loaded = bench.loaded
        data = resolve_reference("data", loaded.data)
        return open_input(data, loaded.data_kwargs, config, lambda error: None)
    finally:
        vars(tfdata.reserved).update(kept)
