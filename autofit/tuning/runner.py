"""Run the trials of one request. Only this module of the engine uses the launcher."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autofit.errors import NoTrialFinishedError, UserCodeError
from autofit.records import cuda_memory
from autofit.records.description import TORCH_COMPILE, Description
from autofit.records.events import Activity, Emit
from autofit.records.states import Outcome, Phase, Role, Stage
from autofit.records.trial import FitConfig, Measurement, Trial, TrialSpec
from autofit.records.units import format_bytes
from autofit.trial.launcher import Launcher, run_to_end
from autofit.tuning.budget import COMPILE_SECONDS, CONFIRM_SECONDS, SEARCH_SECONDS, Budget
from autofit.tuning.request import TuneRequest

_MOST_REPEATS = 4  # disturbed trials that are repeated in one tune
# a disturbed trial is repeated if this many times its seconds are left: 3 rounds, and 6 trials of the search, which learns
# more
_REPEATS_RATIO = 12.0
_GPU_SECONDS = (
    600.0  # longest for the estimate on one GPU that is not there: XLA compiles several sizes
)
_GAP_SECONDS = 5.0  # a gap between epochs that is not read is assumed to be shorter
_LEAST_SHARE = 1e-6  # of an epoch, for a tolerance of 0
_SHORT_EPOCH_RATIO = (
    10.0  # of an epoch to a trial's timing: longer ones take too long to matter in a search
)
_PROMISING_RATIO = 0.9  # the measurement of a config ends early if its rate is clearly below this share of the best


class TrialRunner:
    """Runs trials of one request, and emits what it is doing."""

    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self.request, self.budget, self.emit = request, Budget(request.settings), emit
        self._launcher = launcher
        self._repeats_left, self._has_warned = _MOST_REPEATS, False
        self._epoch_samples: int | None = None

    def describe(self, config: FitConfig, **asked: Any) -> Description | Measurement:
        """Describe the model and the data, or return a measurement that says how that failed; `asked` is of the spec."""
        spec = self._spec(Role.DESCRIBE, config, 0.0, **asked)
        result: Description | Measurement = self._run(
            spec, Activity("describing the model and the data")
        )
        if isinstance(result, Description):
            self._epoch_samples = result.sample_count
            if result.compiler == TORCH_COMPILE:
                self.budget.max_trial_seconds += COMPILE_SECONDS
        return result

    def measure(
        self,
        config: FitConfig,
        activity: Activity,
        trials: Sequence[Trial] = (),
        most_seconds: float = math.inf,
        *,
        reads_memory: bool = True,
    ) -> Trial:
        """Measure a new config; end early if it cannot beat the best of `trials`, and reuse their reading of the step alone.

        `most_seconds` are those that it may take at most. Unless it `reads_memory`, it does not
        wait for a full queue.
        """
        step = config.batch_size, config.steps_per_execution
        same = (
            t.measurement
            for t in trials
            if (t.config.batch_size, t.config.steps_per_execution) == step
        )
        read = next(
            (
                m.compute_samples_per_second
                for m in same
                if m.compute_is_read and m.compute_samples_per_second
            ),
            None,
        )
        best = max((trial.samples_per_second for trial in trials), default=0.0)
        rates = {"rate_to_beat": _PROMISING_RATIO * best, "compute_samples_per_second": read}
        spec = self._spec(
            Role.MEASURE,
            config,
            SEARCH_SECONDS,
            deadline_seconds=min(self.budget.deadline_seconds(), most_seconds),
            reads_memory=reads_memory,
            **rates,
        )
        return Trial(config, self._measured(spec, activity), activity.why)

    def confirm(self, config: FitConfig, activity: Activity, trials: Sequence[Trial]) -> Trial:
        """Run a config for longer than a new one, where it or another is among the `trials` that finished.

        Its first such run starts with a short epoch and its validation. What earlier ones read of the gap between epochs is
        not read again.
        """
        finished = [trial for trial in trials if trial.samples_per_second]
        own = [trial for trial in finished if trial.config == config]
        earlier = [trial.measurement for trial in own if trial.stage is not Stage.SEARCH]
        measured = (own or finished)[0].measurement
        rates = {
            name: getattr(measured, name)
            for name in ("compute_samples_per_second", "input_samples_per_second")
        }
        spec = self._spec(
            Role.CONFIRM,
            config,
            CONFIRM_SECONDS,
            deadline_seconds=self.budget.deadline_seconds(measured.seconds),
            reads_memory=not earlier,
            **rates,
        )
        gaps = [run for run in earlier if _has_long_epochs(run)]
        if not gaps:
            return Trial(config, self._measured(spec, activity), activity.why)
        run = self._measured(replace(spec, longest_epoch_seconds=0.0), activity)
        return Trial(
            config, _with_gap(run, gaps) if run.outcome is Outcome.OK else run, activity.why
        )

    def _spec(self, role: Role, config: FitConfig, seconds: float, **changes: Any) -> TrialSpec:
        """Return the spec of a trial, which reads the gap between epochs where that may exceed half of the tolerance."""
        settings = self.request.settings
        longest = _GAP_SECONDS / max(settings.options.tolerance / 2, _LEAST_SHARE)
        usual: dict[str, Any] = {
            "deadline_seconds": len(changes.get("gpus", ())) * _GPU_SECONDS
            or self.budget.deadline_seconds(),
            "effective_batch_size": settings.effective_batch_size,
            "longest_epoch_seconds": longest
            if role is Role.CONFIRM
            else min(longest, _SHORT_EPOCH_RATIO * seconds),
            "epoch_samples": self._epoch_samples,
        }
        return TrialSpec(
            role, config, self.request.limits, measure_seconds=seconds, **usual | changes
        )

    def _measured(self, spec: TrialSpec, activity: Activity) -> Measurement:
        """Run a trial; repeat it if other work disturbed it, or if its device limit left nothing to the GPU's libraries."""
        result: Measurement = self._run(spec, activity)
        again = replace(spec, deadline_seconds=spec.deadline_seconds - result.seconds)
        limit_bytes = spec.limits.device_bytes or 0
        if result.evidence.outside_pool and limit_bytes > 2 * cuda_memory.LIBRARY_BYTES:
            limits = replace(spec.limits, device_bytes=limit_bytes - cuda_memory.LIBRARY_BYTES)
            lower: Measurement = self._run(replace(again, limits=limits), activity)
            if lower.outcome is not Outcome.OK:
                return result
            limit, less = (
                format_bytes(limit_bytes),
                format_bytes(limit_bytes - cuda_memory.LIBRARY_BYTES),
            )
            text = f"a device limit of {limit} left no memory for the GPU's libraries; a limit of {less} did"
            remedy = f"Set device_memory to {less}, and set the same limit in your own training"
            self.emit(f"{spec.config}: {text}. {remedy}")
            return lower
        work = _other_work(result)
        if (
            work
            and self._repeats_left
            and self.budget.seconds_left() > _REPEATS_RATIO * result.seconds
        ):
            self._repeats_left -= 1
            self.emit(f"{work} while {spec.config} was timed; the measurement is repeated")
            repeated: Measurement = self._run(again, activity)
            result, work = (
                result if repeated.outcome is Outcome.TIMEOUT else repeated,
                _other_work(repeated),
            )
            if work:  # it goes on, so further repeats would not help
                self._repeats_left = 0
        if work and not self._has_warned:
            self._has_warned = True
            self.emit(
                f"{work}: the measured rates are lower and less certain than on an idle machine"
            )
        return result

    def _run(self, spec: TrialSpec, activity: Activity, *, is_second: bool = False) -> Any:
        """Run a process, again if its server was lost; return a description, if that is its task, or a measurement."""
        self.emit(activity)
        result = run_to_end(
            self._launcher.run(spec), lambda phase: self.emit(replace(activity, phase=phase))
        )
        if is_second or isinstance(result, Description) or not result.evidence.server_lost:
            return result
        what = activity.config or activity.doing
        self.emit(f"{what}: {result.evidence.reason}. It is repeated with a new server")
        left_seconds = min(spec.deadline_seconds, self.budget.seconds_left())
        return self._run(replace(spec, deadline_seconds=left_seconds), activity, is_second=True)


def _other_work(measurement: Measurement) -> str:
    """Return what other processes used while a rate was timed, in words; empty if they did not disturb it."""
    conditions = measurement.conditions
    return conditions.other_work if conditions is not None and conditions.is_disturbed else ""


def measure(
    request: TuneRequest, launcher: Launcher, emit: Emit, configs: Sequence[FitConfig]
) -> tuple[Trial, ...]:
    """Measure each config once, like a trial of the search; nothing is stored."""
    runner, trials = TrialRunner(request, launcher, emit), []
    for number, config in enumerate(configs, 1):
        trials.append(runner.measure(config, Activity(f"trial {number} of {len(configs)}", config)))
        emit(trials[-1])
        raise_user_error(trials[-1].measurement)
    return tuple(trials)


def raise_user_error(measurement: Measurement) -> None:
    """Raise `UserCodeError` if the user's code raised in a trial."""
    if measurement.outcome is Outcome.ERROR:
        evidence = measurement.evidence
        raise UserCodeError(
            f"while {(evidence.phase or Phase.STARTING).label}",
            measurement.traceback or evidence.reason,
        )


def _has_long_epochs(run: Measurement) -> bool:
    """Return whether a run read the gap between epochs that are too long to be timed as a whole."""
    rate = run.steady_samples_per_second
    if run.epoch_gap_seconds is None or not rate:
        return False
    return (run.epoch_samples or 0) / rate > CONFIRM_SECONDS


def _with_gap(run: Measurement, earlier: Sequence[Measurement]) -> Measurement:
    """Return a run at its rate over epochs, with the median of the gaps that earlier ones read."""
    samples, rate = earlier[0].epoch_samples, run.samples_per_second
    if not samples or not rate:
        return run
    gap = statistics.median(each.epoch_gap_seconds or 0.0 for each in earlier)
    seconds = samples / rate
    share = seconds / (seconds + gap)
    return replace(
        run,
        samples_per_second=share * rate,
        spread=None if run.spread is None else share * run.spread,
        epoch_samples=samples,
        epoch_gap_seconds=gap,
    )


def not_described(measurement: Measurement, budget: Budget) -> NoTrialFinishedError:
    """Make the error for a describing trial that failed for a reason other than memory or the user's code."""
    raise_user_error(measurement)
    if measurement.outcome is Outcome.TIMEOUT and not budget.seconds_left():
        return NoTrialFinishedError(
            budget.too_short([measurement], "the model and the data were built")
        )
    remedy = (
        ". Raise max_trial_seconds (in options), or max_seconds if that is shorter"
        * measurement.ran_out_of_time
    )
    return NoTrialFinishedError(
        f"the model and the data could not be built: {measurement.evidence.reason}{remedy}"
    )
