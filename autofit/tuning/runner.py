"""Run the trials of one request. Only this module of the engine uses the launcher."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autofit.backends import BACKENDS
from autofit.errors import NoTrialFinishedError, UserCodeError
from autofit.records import cuda_memory
from autofit.records.description import Description
from autofit.records.events import Activity, Emit
from autofit.records.knobs import FitConfig
from autofit.records.states import Outcome, Phase, Role, Stage
from autofit.records.trial import Measurement, Trial, TrialSpec
from autofit.records.units import format_bytes
from autofit.trial.launcher import Launcher
from autofit.tuning.budget import CONFIRM_SECONDS, SEARCH_SECONDS, Budget
from autofit.tuning.request import TuneRequest

# disturbed trials that are repeated in one tune
_MOST_REPEATS = 4
# a disturbed trial is repeated if this many times its seconds are left: 3 rounds, and 6 trials of
# the search, which learns more
_REPEATS_RATIO = 12.0
# longest for the estimate on one GPU that is not there: XLA compiles several sizes
_GPU_SECONDS = 600.0
# a gap between epochs that is not read is assumed to be shorter
_GAP_SECONDS = 5.0
# of an epoch, for a tolerance of 0
_LEAST_SHARE = 1e-6
# of an epoch to a trial's timing: longer ones take too long to matter in a search
_SHORT_EPOCH_RATIO = 10.0
# the measurement of a config ends early if its rate is clearly below this share of the best
_PROMISING_RATIO = 0.9


class TrialRunner:
    """Runs trials of one request, and emits what it is doing."""

    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self.request = request
        self.budget = Budget(request.settings)
        self.emit = emit
        self._launcher = launcher
        self._repeats_left = _MOST_REPEATS
        self._has_warned = False
        self._epoch_samples: int | None = None

    def describe(self, config: FitConfig, **asked: Any) -> Description | Measurement:
        """Describe the model and the data; `asked` are fields of the spec.

        Return a measurement that says how that failed, if it did.
        """
        spec = self._spec(Role.DESCRIBE, config, 0.0, **asked)
        activity = Activity("describing the model and the data")
        result: Description | Measurement = self._run(spec, activity)
        if isinstance(result, Description):
            self._epoch_samples = result.sample_count
            if result.jit_compile:
                self.budget.max_trial_seconds += BACKENDS[
                    result.backend
                ].compile_seconds
        return result

    def measure(
        self,
        config: FitConfig,
        activity: Activity,
        trials: Sequence[Trial] = (),
        most_seconds: float = math.inf,
        *,
        reads_memory: bool = True,
        reads_epoch: bool = False,
        jit_compile: bool | None = None,
    ) -> Trial:
        """Measure a new config for `most_seconds` at most.

        End early if it cannot beat the best of `trials`, and reuse their reading of the step alone.
        Unless it `reads_memory`, it does not wait for a full queue. If it `reads_epoch`, it reads
        the start of longer epochs and a validation, and does not end early. `jit_compile` takes the
        place of the model's own.
        """
        best = max((trial.samples_per_second for trial in trials), default=0.0)
        spec = self._spec(
            Role.MEASURE,
            config,
            SEARCH_SECONDS,
            deadline_seconds=min(self.budget.deadline_seconds(), most_seconds),
            reads_memory=reads_memory,
            rate_to_beat=None if reads_epoch else _PROMISING_RATIO * best,
            compute_samples_per_second=_step_rate(config, trials),
            jit_compile=jit_compile,
        )
        if reads_epoch:
            longest = self._longest_epoch_seconds()
            spec = replace(spec, longest_epoch_seconds=longest, validates=True)
        return Trial(config, self._run_undisturbed(spec, activity), activity.why)

    def confirm(
        self, config: FitConfig, activity: Activity, trials: Sequence[Trial]
    ) -> Trial:
        """Run a config for longer than a new one; it or another is among `trials` that finished.

        Its first such run starts with a short epoch and its validation. What earlier ones read of
        the gap between epochs is not read again.
        """
        finished = [trial for trial in trials if trial.samples_per_second]
        own = [trial for trial in finished if trial.config == config]
        earlier = [
            trial.measurement for trial in own if trial.stage is not Stage.SEARCH
        ]
        measured = (own or finished)[0].measurement
        spec = self._spec(
            Role.CONFIRM,
            config,
            CONFIRM_SECONDS,
            deadline_seconds=self.budget.deadline_seconds(measured.seconds),
            reads_memory=not earlier,
            compute_samples_per_second=measured.compute_samples_per_second,
            input_samples_per_second=measured.input_samples_per_second,
        )
        gaps = [run for run in earlier if _has_long_epochs(run)]
        if gaps:
            spec = replace(spec, longest_epoch_seconds=0.0)
        run = self._run_undisturbed(spec, activity)
        if gaps and run.outcome is Outcome.OK:
            run = _with_gap(run, gaps)
        return Trial(config, run, activity.why)

    def _spec(
        self, role: Role, config: FitConfig, seconds: float, **changes: Any
    ) -> TrialSpec:
        """Return the spec of a trial that is timed for some seconds.

        It reads the gap between epochs where that may exceed half of the tolerance.
        """
        settings = self.request.settings
        longest_epoch = self._longest_epoch_seconds()
        if role is not Role.CONFIRM:
            longest_epoch = min(longest_epoch, _SHORT_EPOCH_RATIO * seconds)
        deadline_seconds = len(changes.get("gpus", ())) * _GPU_SECONDS
        usual: dict[str, Any] = {
            "deadline_seconds": deadline_seconds or self.budget.deadline_seconds(),
            "effective_batch_size": settings.effective_batch_size,
            "longest_epoch_seconds": longest_epoch,
            "epoch_samples": self._epoch_samples,
        }
        return TrialSpec(
            role,
            config,
            self.request.limits,
            measure_seconds=seconds,
            **usual | changes,
        )

    def _longest_epoch_seconds(self) -> float:
        tolerance = self.request.settings.options.tolerance
        return _GAP_SECONDS / max(tolerance / 2, _LEAST_SHARE)

    def _run_undisturbed(self, spec: TrialSpec, activity: Activity) -> Measurement:
        """Run a trial, again if other work disturbed it or the GPU's libraries had no memory."""
        result: Measurement = self._run(spec, activity)
        again = replace(spec, deadline_seconds=spec.deadline_seconds - result.seconds)
        limit_bytes = spec.limits.device_bytes or 0
        if result.evidence.outside_pool and limit_bytes > 2 * cuda_memory.LIBRARY_BYTES:
            return self._run_with_room(again, activity) or result
        work = _other_work(result)
        has_time = self.budget.seconds_left() > _REPEATS_RATIO * result.seconds
        if work and self._repeats_left > 0 and has_time:
            self._repeats_left -= 1
            self.emit(
                f"{work} while {spec.config} was timed; the measurement is repeated"
            )
            repeated: Measurement = self._run(again, activity)
            work = _other_work(repeated)
            # it goes on, so further repeats would not help
            if work:
                self._repeats_left = 0
            if repeated.outcome is not Outcome.TIMEOUT:
                result = repeated
        if work and not self._has_warned:
            self._has_warned = True
            effect = (
                "the measured rates are lower and less certain than on an idle machine"
            )
            self.emit(f"{work}: {effect}")
        return result

    def _run_with_room(self, spec: TrialSpec, activity: Activity) -> Measurement | None:
        """Run a trial with a device limit that leaves memory to the GPU's libraries.

        Return None if that fails, too. Other trials keep the user's limit, which may suffice for
        them; a message names the limit that did.
        """
        limit_bytes = spec.limits.device_bytes or 0
        limits = replace(
            spec.limits, device_bytes=limit_bytes - cuda_memory.LIBRARY_BYTES
        )
        lower: Measurement = self._run(replace(spec, limits=limits), activity)
        if lower.outcome is not Outcome.OK:
            return None
        limit = format_bytes(limit_bytes)
        less = format_bytes(limit_bytes - cuda_memory.LIBRARY_BYTES)
        text = f"a device limit of {limit} left no memory for the GPU's libraries"
        remedy = (
            f"Set device_memory to {less}, and set the same limit in your own training"
        )
        self.emit(f"{spec.config}: {text}; a limit of {less} did. {remedy}")
        return lower

    def _run(
        self, spec: TrialSpec, activity: Activity, *, is_second: bool = False
    ) -> Any:
        """Run a process, again if its server was lost.

        Return a description, if that is its task, or a measurement.
        """
        self.emit(activity)
        result = self._launcher.run(
            spec, lambda phase: self.emit(replace(activity, phase=phase))
        )
        if (
            is_second
            or isinstance(result, Description)
            or not result.evidence.server_lost
        ):
            return result
        what = activity.config or activity.doing
        self.emit(f"{what}: {result.evidence.reason}. It is repeated with a new server")
        left_seconds = min(spec.deadline_seconds, self.budget.seconds_left())
        return self._run(
            replace(spec, deadline_seconds=left_seconds), activity, is_second=True
        )


def _step_rate(config: FitConfig, trials: Sequence[Trial]) -> float | None:
    """Return the rate of the step alone that trials of the same step have read."""
    for trial in trials:
        measured = trial.measurement
        is_same_batch = trial.config.batch_size == config.batch_size
        is_same_call = trial.config.steps_per_execution == config.steps_per_execution
        is_read = measured.compute_is_read and measured.compute_samples_per_second
        if is_same_batch and is_same_call and is_read:
            return measured.compute_samples_per_second
    return None


def _other_work(measurement: Measurement) -> str:
    """Return what other processes used, in words; "" if they did not disturb a measurement."""
    conditions = measurement.conditions
    if conditions is None or not conditions.is_disturbed:
        return ""
    return conditions.other_work


def measure(
    request: TuneRequest, launcher: Launcher, emit: Emit, configs: Sequence[FitConfig]
) -> tuple[Trial, ...]:
    """Measure each config once, like a trial of the search; nothing is stored."""
    runner = TrialRunner(request, launcher, emit)
    trials = []
    for number, config in enumerate(configs, 1):
        trial = runner.measure(
            config, Activity(f"trial {number} of {len(configs)}", config)
        )
        trials.append(trial)
        emit(trial)
        raise_user_error(trial.measurement)
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
    """Return whether a run read the gap between epochs that are too long to be timed whole."""
    rate = run.steady_samples_per_second
    if run.epoch_gap_seconds is None or not rate:
        return False
    return (run.epoch_samples or 0) / rate > CONFIRM_SECONDS


def _with_gap(run: Measurement, earlier: Sequence[Measurement]) -> Measurement:
    """Return a run at its rate over epochs, with the median of the gaps that earlier ones read.

    Of two, that is the shorter: on TensorFlow, epochs may begin late.
    """
    samples = earlier[0].epoch_samples
    rate = run.samples_per_second
    if not samples or not rate:
        return run
    gap = statistics.median_low(each.epoch_gap_seconds or 0.0 for each in earlier)
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
    """Make the error for a describing trial that failed, but not because of memory.

    Raise `UserCodeError` if the user's code failed.
    """
    raise_user_error(measurement)
    if measurement.outcome is Outcome.TIMEOUT and not budget.seconds_left():
        return NoTrialFinishedError(
            budget.too_short([measurement], "the model and the data were built")
        )
    problem = (
        f"the model and the data could not be built: {measurement.evidence.reason}"
    )
    if measurement.ran_out_of_time:
        problem += (
            ". Raise max_trial_seconds (in options), or max_seconds if that is shorter"
        )
    return NoTrialFinishedError(problem)
