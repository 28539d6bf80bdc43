"""Measure the gradient noise scale of a workload.

TuneRequest ──> describe ──> a trial that trains, and reads gradients at frozen weights ──> NoiseScale
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from autofit.errors import TrialProcessError, UsageError
from autofit.records import gradient_statistics
from autofit.records.description import Description
from autofit.records.events import Activity, Emit
from autofit.records.noise import STEPS, Gradients, Metric, NoiseScale
from autofit.records.result import TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import FitConfig, Measurement
from autofit.records.units import counted, format_seconds
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning.prepare import describe
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, require_user_code_ran
from autofit.workload.fit_options import FIT

_TUNE_SHARE = 0.15  # of the seconds of a tune that the noise scale may take
_GOODPUT_SECONDS = 60.0  # the same before a search, if the tune has no limit
_SCALE: TypeAdapter[NoiseScale | None] = TypeAdapter(NoiseScale | None)
_WANTED_BATCHES = 64  # microbatches in an epoch: with fewer, they are made smaller


def measure(
    request: TuneRequest,
    launcher: Launcher,
    emit: Emit,
    *,
    steps: Sequence[int],
    seconds: float,
    batch_size: int | None = None,
    weights: str = "",
) -> NoiseScale:
    """Measure the noise scale after each number of `steps` for at most about `seconds`, or at `weights` in a file."""
    runner = TrialRunner(request, launcher, emit)
    description = describe(runner)
    config = _baseline(request, description)
    if batch_size is not None and (config.batch_size is None or description.fixed_batch_size is not None):
        raise UsageError("the data takes batches of one size only; remove batch_size", key="batch_size")
    if description.fixed_batch_size is not None and config.batch_size is not None:
        config = replace(config, batch_size=description.fixed_batch_size)
    doing = "measuring gradients" + ("" if weights else f" after {counted(steps[-1], 'update')} or fewer")
    size = batch_size or _microbatch(description, config)
    return of_measurement(runner.gradients(config, Activity(doing, config), tuple(steps), seconds, weights, size))


def _baseline(request: TuneRequest, description: Description) -> FitConfig:
    """Return the baseline with the knobs that the data takes."""
    values = request.baseline(description).values()
    return FitConfig.of({knob: value for knob, value in values.items() if knob in description.knobs})


def is_wanted(request: TuneRequest, record: TuneRecord) -> bool:
    """Return whether a tune measures the noise scale at its end: it is asked for, and the batch size would change."""
    now, before = record.config.batch_size, record.speedup.baseline.batch_size
    trains = request.call_source.call == FIT and not request.settings.effective_batch_size
    settings = request.settings
    asked = (
        (settings.noise_scale or settings.race_seconds is not None)
        and trains
        and not _obstacle(request, record.description)
    )
    return asked and record.noise_scale is None and bool(now and before) and now != before


def _obstacle(request: TuneRequest, description: Description) -> str:
    """Return why the noise scale cannot be measured; an empty text if it can."""
    if request.placement.count > 1:
        return "it is measured on one device only"
    return "" if description.keras == "keras" else f"it needs Keras 3, not {description.keras}"


def before_search(runner: TrialRunner, description: Description) -> NoiseScale:
    """Measure the noise scale with the baseline's config, for a share of what a tune may take; a failure is its reason."""
    if obstacle := _obstacle(runner.request, description):
        return NoiseScale(reason=obstacle)
    config = _baseline(runner.request, description)
    if config.batch_size is None or description.fixed_batch_size is not None:
        return NoiseScale(reason="all batches have one size")
    most_seconds = runner.request.settings.max_seconds
    seconds = min(_TUNE_SHARE * most_seconds if most_seconds else _GOODPUT_SECONDS, runner.budget.seconds_left())
    return _in_tune(runner, description, config, seconds)


def of_tune(runner: TrialRunner, record: TuneRecord) -> NoiseScale:
    """Measure the noise scale with the baseline's config, for a share of what the tune took; a failure is its reason."""
    seconds = min(_TUNE_SHARE * runner.budget.seconds(), runner.budget.seconds_left())
    config = record.speedup.baseline
    rates = [t.measurement.samples_per_second for t in (*record.trials, *record.runs) if t.config == config]
    rate = max(filter(None, rates), default=None)
    if rate and STEPS[0] * (config.batch_size or 1) / rate > seconds:
        reason = f"{STEPS[0]} updates take longer than the {format_seconds(seconds)} that a tune of this length gives it; "
        return NoiseScale(reason=reason + "run autofit noise")
    return _in_tune(runner, record.description, config, seconds)


def kept(study: TuningStudy, measured: Callable[[], NoiseScale]) -> NoiseScale:
    """Return the scale that this tune measured before it was interrupted; measure and keep it if there is none."""
    with contextlib.suppress(ValidationError):
        stored = _SCALE.validate_python(study.attribute(attributes.NOISE_SCALE))
        if stored is not None:
            return stored
    scale = measured()
    if scale.low is not None:  # a failure may be one of the moment
        study.set_attribute(attributes.NOISE_SCALE, _SCALE.dump_python(scale, mode="json"))
    return scale


def _in_tune(runner: TrialRunner, description: Description, config: FitConfig, seconds: float) -> NoiseScale:
    size = _microbatch(description, config)
    try:
        measurement = runner.gradients(config, Activity("measuring gradients", config), STEPS, seconds, "", size)
    except (UsageError, TrialProcessError) as error:
        return NoiseScale(reason=str(error))
    if measurement.outcome is Outcome.ERROR:
        return NoiseScale(reason=f"your code failed with the optimizer replaced ({measurement.evidence.reason})")
    return of_measurement(measurement)


def _microbatch(description: Description, config: FitConfig) -> int | None:
    """Return a smaller batch size for the gradients if an epoch has few batches; None if it has enough."""
    if not config.batch_size or not description.sample_count or description.fixed_batch_size is not None:
        return None
    most = 2 ** int(math.log2(max(1, description.sample_count // _WANTED_BATCHES)))
    return most if most < config.batch_size else None


def of_measurement(measurement: Measurement) -> NoiseScale:
    """Estimate the noise scale from what a trial has read."""
    require_user_code_ran(measurement)
    if not measurement.gradients:
        return NoiseScale(reason=measurement.evidence.reason)
    *earlier, last = map(_of_gradients, measurement.gradients)
    if last.reason == gradient_statistics.NOT_FINITE and earlier:  # it was measured before the training broke down
        *earlier, last = earlier
    return replace(last, trend=tuple(earlier), seconds=measurement.seconds)


def _of_gradients(gradients: Gradients) -> NoiseScale:
    read = NoiseScale(
        reason=gradients.problem,
        at_step=gradients.at_step,
        batch_size=gradients.batch_size,
        microbatches=gradients.microbatches,
        optimizer=gradients.optimizer,
    )
    if gradients.problem:
        return read
    if any(gradient_statistics.is_ordered(gradients, metric) for metric in gradients.by_metric):
        return replace(read, reason=gradient_statistics.ORDERED)
    scales = {metric: gradient_statistics.scale_of(gradients, metric) for metric in gradients.by_metric}
    metric = Metric.PRECONDITIONED if Metric.PRECONDITIONED in scales else Metric.EUCLIDEAN
    scale, other = scales[metric], scales.get(Metric.EUCLIDEAN) if metric is Metric.PRECONDITIONED else None
    value = None if other is None else other.value
    return replace(read, value=scale.value, low=scale.low, high=scale.high, metric=metric, other_value=value)
