"""Re-run what was chosen, and the baseline, in fresh processes, interleaved and longer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from autofit.records.events import Activity, Event, Notice, TrialEnded
from autofit.records.intervals import mean_interval
from autofit.records.result import Recommendation, Speedup
from autofit.records.trial import FitConfig, Measurement, Outcome, Trial

Run = Callable[[FitConfig, Activity], Generator[Event, None, Measurement]]
Validate = Callable[[FitConfig, Activity, int | None], Generator[Event, None, Measurement]]
"""Runs a config with batches of their own size for validation, or of the config's."""

_LESS = 4  # validation that does not fit is tried with so many times fewer samples a batch


@dataclass(frozen=True)
class FailedConfirmation:
    """The chosen config failed when it was run longer."""

    trial: Trial


def confirm(
    chosen: Trial, baseline: FitConfig, run: Validate, rounds: int, *, may_win: bool, tolerance: float, may_shrink: bool
) -> Generator[Event, None, Recommendation | FailedConfirmation]:
    """Run the chosen config and the baseline `rounds` times each, in turn and in changing order.

    The speed-up is the geometric mean of the ratios of neighbouring runs, with Student's 95 % interval of their logarithms.
    A baseline that turns out faster by more than the tolerance takes the place of what was chosen, if it `may_win`: one
    outside the search space is only compared with. Where it is validation that does not fit, it is given smaller batches,
    if it `may_shrink`.
    """
    validation: int | None = None
    runs: dict[FitConfig, list[Measurement]] = {chosen.config: [], baseline: []}
    lost: Measurement | None = None
    for number in range(rounds):
        pair = [chosen.config] if baseline == chosen.config or lost else [chosen.config, baseline]
        for config in pair if number % 2 == 0 else reversed(pair):
            stage = "chosen" if config == chosen.config else "baseline"
            name = "the chosen config" if stage == "chosen" else "the baseline"
            activity = Activity(f"confirming {name}, run {number + 1} of {rounds}", config)
            if stage == "chosen":
                measurement, validation = yield from _validated(config, run, activity, validation, may_shrink)
            else:
                measurement = yield from run(config, activity, None)
            yield TrialEnded(Trial(config, measurement), stage)
            if measurement.outcome is Outcome.OK:
                runs[config].append(measurement)
            elif stage == "chosen":
                return FailedConfirmation(Trial(config, measurement))
            else:
                lost = measurement
    if lost is not None:
        return _recommend(chosen, runs[chosen.config], Speedup(baseline, lost.outcome), validation)
    if baseline == chosen.config:
        return _recommend(chosen, runs[baseline], Speedup(baseline, Outcome.OK, 1.0, 1.0, 1.0, rounds), validation)
    speedup = _speedup(baseline, runs[chosen.config], runs[baseline])
    if may_win and speedup.ratio is not None and speedup.ratio < 1 - tolerance:
        kept = Trial(baseline, runs[baseline][0])
        return _recommend(kept, runs[baseline], Speedup(baseline, Outcome.OK, 1.0, 1.0, 1.0, rounds), validation)
    return _recommend(chosen, runs[chosen.config], speedup, validation)


def rerun_finalists(
    finalists: Sequence[Trial], thoughts: Mapping[FitConfig, tuple[float, float]], run: Run
) -> Generator[Event, None, dict[FitConfig, float] | FailedConfirmation]:
    """Run each finalist once more, in turn; returns what is now thought of their rates, samples per second.

    Earlier thought and new reading are weighed by their variances. The readings choose, and so are not reported as the
    rate of what they chose: the highest of several noisy readings is too high.
    """
    rates = {}
    for number, finalist in enumerate(finalists):
        doing = f"comparing finalists, {number + 1} of {len(finalists)}"
        measurement = yield from run(finalist.config, Activity(doing, finalist.config))
        trial = Trial(finalist.config, measurement)
        yield TrialEnded(trial, "finalist")
        if measurement.outcome is not Outcome.OK:
            return FailedConfirmation(trial)
        mean, deviation = thoughts[finalist.config]
        weight = deviation**2 / (deviation**2 + measurement.rate_noise**2)
        rates[finalist.config] = math.exp(mean + weight * (math.log(measurement.samples_per_second or 1.0) - mean))
    return rates


def _validated(
    config: FitConfig, run: Validate, activity: Activity, validation: int | None, may_shrink: bool
) -> Generator[Event, None, tuple[Measurement, int | None]]:
    """Run the chosen config, with ever smaller batches for validation while it is that which does not fit."""
    measurement = yield from run(config, activity, validation)
    size = validation or config.batch_size or 1
    while may_shrink and measurement.outcome.is_oom and measurement.evidence.phase == "validation" and size > 1:
        yield TrialEnded(Trial(config, measurement), "chosen")
        size = validation = max(1, size // _LESS)
        yield Notice(f"validation did not fit with as many samples a batch; now with {size}")
        measurement = yield from run(config, activity, validation)
    return measurement, validation


def _speedup(baseline: FitConfig, chosen_runs: list[Measurement], baseline_runs: list[Measurement]) -> Speedup:
    logs = [
        math.log((a.samples_per_second or 0) / (b.samples_per_second or 1))
        for a, b in zip(chosen_runs, baseline_runs, strict=True)
    ]
    mean, half_width = mean_interval(logs)
    low, high = (math.exp(mean - half_width), math.exp(mean + half_width)) if len(logs) > 1 else (None, None)
    return Speedup(baseline, Outcome.OK, math.exp(mean), low, high, len(logs))


def _recommend(
    chosen: Trial, runs: list[Measurement], speedup: Speedup, validation_batch_size: int | None
) -> Recommendation:
    rates = [m.samples_per_second or 0.0 for m in runs]
    mean, half_width = mean_interval(rates)
    everything = [chosen.measurement, *runs]
    return Recommendation(
        config=chosen.config,
        samples_per_second=statistics.median(rates),
        spread=half_width / mean if len(rates) > 1 else runs[0].spread,
        device_peak_bytes=_peak([m.device_peak_bytes for m in everything]),
        host_peak_bytes=_peak([m.host_peak_bytes for m in everything]),
        speedup=speedup,
        confirmed=True,
        validation_batch_size=validation_batch_size,
    )


def _peak(readings: list[int | None]) -> int | None:
    return max((r for r in readings if r is not None), default=None)
