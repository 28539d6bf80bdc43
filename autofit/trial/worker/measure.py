"""Measure or confirm a config; loads Keras.

Three rates are measured, all with `Model.fit`, or with `predict` or `evaluate` if they are tuned:
end to end; the same step on one repeated batch (compute); the same pipeline with a step that does
nothing (input). Keras fetches batches inside its compiled train function, so no finer measurement
can separate waiting from computing.
"""

from __future__ import annotations

import math
from typing import Any

from autofit.records.states import Outcome, Role
from autofit.records.trial import Evidence, Measurement
from autofit.trial.wire import Message
from autofit.trial.worker import timing
from autofit.trial.worker.bench import Bench
from autofit.trial.worker.build import build_model, build_variables
from autofit.trial.worker.job import TrialContext
from autofit.trial.worker.open import open_data
from autofit.trial.worker.step_clock import Epochs, ceiling
from autofit.workload import fit_options
from autofit.workload.workload import Workload


def measure(context: TrialContext, loaded: Workload) -> None:
    """Measure a config, or confirm it if that is the role of the trial."""
    model = build_model(context, loaded)
    data, held_out = open_data(context, loaded)
    bench = Bench(context, loaded, model, data, held_out)
    if bench.method.trains:
        build_variables(model, data.batch())
    confirms = context.spec.role is Role.CONFIRM
    plans = timing.confirm(bench) if confirms else timing.measure(bench)
    readings = bench.play_all(plans)
    rate = readings.steady.rate()
    fields: dict[str, Any] = {
        "samples_per_second": rate.samples_per_second,
        "spread": rate.spread,
    }
    if isinstance(readings.epochs, Epochs):
        fields |= readings.epochs.readings(rate)
    else:
        fields["epoch_gap_unread"] = readings.epochs
    for name, alone in (("compute", readings.compute), ("input", readings.input)):
        rate_alone, is_read = ceiling(alone, rate)
        fields[f"{name}_samples_per_second"] = rate_alone
        fields[f"{name}_spread"] = None if alone is None else alone.spread
        fields[f"{name}_is_read"] = is_read
    ended, _ = rate.blocks[-1]
    compiling = readings.steady.compiling_seconds / ended
    peak = context.peaks.highest()
    limit = context.spec.limits.device_bytes
    notice = (
        context.peaks.backend.allocator_notice(peak, limit) if peak and limit else ""
    )
    measured = Measurement(
        Outcome.OK,
        Evidence("finished"),
        **fields,
        allocator_notice=notice,
        device_peak_bytes=peak,
        device_peak_bytes_by_phase=context.peaks.by_phase,
        steady_samples_per_second=rate.samples_per_second,
        step_seconds=rate.step_seconds,
        steps=rate.steps,
        blocks=rate.blocks,
        # a compilation may begin before the first step that counts
        compiling_share=min(1.0, compiling),
        queued_batches=readings.steady.queued,
        validation_seconds=_validation_seconds(bench),
    )
    context.send(Message(measurement=measured))


def _validation_seconds(bench: Bench) -> float | None:
    """Return the seconds of a validation on all held-out samples; None if they are unknown."""
    held_out = bench.held_out
    if held_out is None or fit_options.VALIDATION_STEPS in bench.options:
        return None
    batches = math.ceil((held_out.sample_count() or 0) / held_out.batch_samples)
    return (bench.validation_batch_seconds or 0.0) * batches or None
