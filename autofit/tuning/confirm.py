"""From the trials of a search to a confirmed choice.

    finalists ──> run once more, where noise leaves the choice open
        │
        └──> chosen config against the baseline, in turn ──> a rival that read far more? run it again
                    │                                              │
              a run failed: stored, choose again             the cheaper of both within the tolerance

Every run is stored as it ends, so that a tune that is killed continues where it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from autofit.records.events import Activity, Notice, TrialEnded
from autofit.records.intervals import mean_interval
from autofit.records.result import DataForm, Recommendation, Speedup
from autofit.records.states import Outcome, Phase, Stage
from autofit.records.trial import Description, FitConfig, Measurement, Trial
from autofit.records.units import format_rate
from autofit.search import selection
from autofit.search.decision import Proposer
from autofit.storage import attributes, result_files
from autofit.storage.study import TuningStudy
from autofit.tuning.runner import TrialRunner, require_user_code_ran

_VALIDATION_SHRINK_FACTOR = 4  # validation that does not fit gets batches smaller by this

Knobs = Mapping[str, tuple[int, ...]]


@dataclass
class _Pair:
    """The runs of one chosen config and of the baseline."""

    chosen: Trial
    baseline: FitConfig
    validation_batch_size: int | None = None
    runs: dict[FitConfig, list[Measurement]] = field(default_factory=dict)
    baseline_failure: Measurement | None = None

    def in_turn(self, number: int) -> list[FitConfig]:
        """The configs of a round in order, which changes from round to round."""
        if self.baseline == self.chosen.config or self.baseline_failure is not None:
            return [self.chosen.config]
        order = [self.chosen.config, self.baseline]
        return order if number % 2 == 0 else order[::-1]


class Confirmation:
    """Chooses among the trials of a search, and runs the choice against the baseline.

    Args:
        runner: runs trials.
        study: stores the trials of the search, and the runs that fail after it.
        proposer: of the search; estimates the rates of what ran.
        knobs: the values of each knob that is searched.
        description: of the workload.
        baseline: the config to compare with.
        baseline_may_win: whether the baseline is in the search space.
    """

    def __init__(
        self,
        runner: TrialRunner,
        study: TuningStudy,
        proposer: Proposer,
        knobs: Knobs,
        description: Description,
        baseline: FitConfig,
        *,
        baseline_may_win: bool,
    ) -> None:
        self._runner, self._study, self._proposer, self._knobs = runner, study, proposer, knobs
        self._baseline, self._baseline_may_win = baseline, baseline_may_win
        request = runner.request
        self._limits, self._tolerance = request.limits, request.settings.tolerance
        self._may_shrink = "batch_size" in description.validation_knobs or request.usage.validation_form is DataForm.ARRAYS
        stored = _stored_runs(study)
        self._reusable = [run for run in stored if run.fits(self._limits)]
        failed = {trial.number for trial in study.trials() if trial.measurement.outcome is not Outcome.OK}
        self.runs = tuple(run for run in stored if run not in self._reusable and run.number in failed)

    def run(self) -> Recommendation | None:
        """Choose and confirm; None when no trial is left to choose.

        Raises:
            UserCodeError: the user's code raised.
        """
        while finalists := self._finalists():
            chosen = self._rerun_finalists(finalists)
            confirmed = None if chosen is None else self._against_baseline(chosen)
            if confirmed is not None:
                return self._against_rival(confirmed)
        return None

    def _finalists(self) -> tuple[Trial, ...]:
        trials = self._study.trials()
        return selection.finalists(trials, self._limits, self._tolerance, self._proposer.rates(trials))

    def _rerun_finalists(self, finalists: Sequence[Trial]) -> Trial | None:
        """Run each finalist once more and choose; None when one failed.

        Earlier estimates and new readings are weighed by their variances. The readings that decide the choice are not
        reported as its rate: the highest of several noisy readings is too high.
        """
        trials = self._study.trials()
        if len(finalists) < 2 or not self._runner.budget.allows_reruns(trials, len(finalists)):
            return finalists[-1]
        estimates, rates = self._proposer.rates(trials), {}
        for number, finalist in enumerate(finalists, 1):
            measurement = self._rerun(finalist.config, f"comparing finalists, {number} of {len(finalists)}")
            if measurement is None:
                return None
            rates[finalist.config] = selection.updated_rate(*estimates[finalist.config], measurement)
        return selection.choose(finalists, self._limits, self._tolerance, rates)

    def _rerun(self, config: FitConfig, doing: str) -> Measurement | None:
        """Measure a config once more; None if that fails, which is stored against the config."""
        trials, activity = self._study.trials(), Activity(doing, config)
        trial = self._run(Stage.FINALIST, config, None, lambda: self._runner.measure_again(config, trials, activity))
        return trial.measurement if trial.measurement.outcome is Outcome.OK else None

    def _against_baseline(self, chosen: Trial) -> Recommendation | None:
        """Run a config and the baseline in turn; None when a run of the config failed.

        A baseline that is faster by more than the tolerance takes the place of the config, if it may win.
        """
        pair, rounds = _Pair(chosen, self._baseline), self._runner.budget.rounds(chosen)
        for number in range(rounds):
            for config in pair.in_turn(number):
                is_chosen = config == chosen.config
                name = "the chosen config" if is_chosen else "the baseline"
                activity = Activity(f"confirming {name}, run {number + 1} of {rounds}", config)
                confirm = self._confirm_chosen if is_chosen else self._confirm
                measurement = confirm(pair, config, activity)
                if measurement.outcome is Outcome.OK:
                    pair.runs.setdefault(config, []).append(measurement)
                elif is_chosen:
                    return None
                else:
                    pair.baseline_failure = measurement
        return _recommendation(pair, self._tolerance if self._baseline_may_win else math.inf)

    def _confirm_chosen(self, pair: _Pair, config: FitConfig, activity: Activity) -> Measurement:
        """Run the chosen config, with ever smaller batches for validation while only that does not fit."""
        measurement = self._confirm(pair, config, activity)
        while self._only_validation_failed(config, measurement, pair.validation_batch_size):
            size = pair.validation_batch_size or config.batch_size or 1
            pair.validation_batch_size = max(1, size // _VALIDATION_SHRINK_FACTOR)
            self._runner.emit(
                Notice(f"validation did not fit with batches of {size}; trying batches of {pair.validation_batch_size}")
            )
            measurement = self._confirm(pair, config, activity)
        return measurement

    def _confirm(self, pair: _Pair, config: FitConfig, activity: Activity) -> Measurement:
        measured = [t.measurement for t in self._study.trials() if t.config == config and t.measurement.samples_per_second]
        reference = measured[0] if measured else pair.chosen.measurement
        size = pair.validation_batch_size if config == pair.chosen.config else None
        stage = Stage.CHOSEN if config == pair.chosen.config else Stage.BASELINE
        return self._run(stage, config, size, lambda: self._runner.confirm(config, reference, activity, size)).measurement

    def _against_rival(self, confirmed: Recommendation) -> Recommendation:
        """Confirm a config whose rate in the search is far above the confirmed one, if a second run repeats it.

        Returns the cheaper of the two within the tolerance of the faster.
        """
        trials, rate = self._study.trials(), confirmed.samples_per_second
        noise = (confirmed.spread or 0.0) / 2
        rival = selection.overlooked(trials, self._limits, confirmed.config, rate, noise)
        if rival is None or not self._runner.budget.allows_reruns(trials, 1):
            return confirmed
        self._runner.emit(
            Notice(f"the choice was confirmed at {format_rate(rate)} samples/s, far below another trial, which runs again")
        )
        rerun = self._rerun(rival.config, "comparing again")
        rates = [run.samples_per_second or 0.0 for run in (rerun, rival.measurement) if run is not None]
        rival_rate = math.sqrt(math.prod(rates)) if rerun is not None else 0.0
        second = self._against_baseline(rival) if rival_rate > (1 + self._tolerance) * rate else None
        if second is None:
            return confirmed
        best = selection.cheapest({r.config: r.samples_per_second for r in (confirmed, second)}, self._tolerance)
        return second if best == second.config else confirmed

    def _run(
        self, stage: Stage, config: FitConfig, validation_batch_size: int | None, measure: Callable[[], Measurement]
    ) -> Trial:
        """Run a trial after the search, or reuse the run of a tune that was killed; a failure counts against its config."""
        key = stage, config, validation_batch_size
        trial = next((run for run in self._reusable if (run.stage, run.config, run.validation_batch_size) == key), None)
        if trial is not None:
            self._reusable.remove(trial)
        else:
            measurement = require_user_code_ran(measure())
            trial = Trial(config, measurement, stage=stage, validation_batch_size=validation_batch_size)
        failed = trial.measurement.outcome is not Outcome.OK
        may_shrink = self._only_validation_failed(config, trial.measurement, validation_batch_size)
        if failed and stage is not Stage.BASELINE and not may_shrink:
            trial = self._study.add(trial, self._knobs)
        self.runs = (*self.runs, trial)
        _store_runs(self._study, (*self.runs, *self._reusable))
        self._runner.emit(TrialEnded(trial))
        return trial

    def _only_validation_failed(self, config: FitConfig, measurement: Measurement, size: int | None) -> bool:
        """Whether a run ran out of memory in its validation, which can take smaller batches."""
        in_validation = measurement.outcome.is_oom and measurement.evidence.phase == Phase.VALIDATION
        return self._may_shrink and in_validation and (size or config.batch_size or 1) > 1


def _recommendation(pair: _Pair, baseline_tolerance: float) -> Recommendation:
    """Recommend the chosen config of a pair; the baseline if it is faster by more than the tolerance."""
    baseline, runs = pair.baseline, pair.runs[pair.chosen.config]
    no_speedup = Speedup(baseline, Outcome.OK, 1.0, 1.0, 1.0, len(runs))
    if pair.baseline_failure is not None:
        return _recommend(pair.chosen, runs, Speedup(baseline, pair.baseline_failure.outcome), pair.validation_batch_size)
    if baseline == pair.chosen.config:
        return _recommend(pair.chosen, runs, no_speedup, pair.validation_batch_size)
    speedup = _speedup(baseline, runs, pair.runs[baseline])
    if speedup.ratio is not None and speedup.ratio < 1 - baseline_tolerance:
        first = Trial(baseline, pair.runs[baseline][0])
        return _recommend(first, pair.runs[baseline], no_speedup, pair.validation_batch_size)
    return _recommend(pair.chosen, runs, speedup, pair.validation_batch_size)


def _speedup(baseline: FitConfig, chosen_runs: Sequence[Measurement], baseline_runs: Sequence[Measurement]) -> Speedup:
    """The geometric mean of the ratios of neighbouring runs, with Student's 95 % interval of their logarithms."""
    logs = [
        math.log((chosen.samples_per_second or 0) / (base.samples_per_second or 1))
        for chosen, base in zip(chosen_runs, baseline_runs, strict=True)
    ]
    mean, half_width = mean_interval(logs)
    low, high = (math.exp(mean - half_width), math.exp(mean + half_width)) if len(logs) > 1 else (None, None)
    return Speedup(baseline, Outcome.OK, math.exp(mean), low, high, len(logs))


def _recommend(
    trial: Trial, runs: Sequence[Measurement], speedup: Speedup, validation_batch_size: int | None
) -> Recommendation:
    rates = [m.samples_per_second or 0.0 for m in runs]
    mean, half_width = mean_interval(rates)
    everything = [trial.measurement, *runs]
    return Recommendation(
        config=trial.config,
        samples_per_second=statistics.median(rates),
        spread=half_width / mean if len(rates) > 1 else runs[0].spread,
        device_peak_bytes=_peak([m.device_peak_bytes for m in everything]),
        host_peak_bytes=_peak([m.host_peak_bytes for m in everything]),
        speedup=speedup,
        validation_batch_size=validation_batch_size,
    )


def _peak(readings: Sequence[int | None]) -> int | None:
    return max((reading for reading in readings if reading is not None), default=None)


def _store_runs(study: TuningStudy, runs: Sequence[Trial]) -> None:
    encoded = result_files.encode_runs(runs)
    numbered = [{**entry, "number": run.number} for entry, run in zip(encoded, runs, strict=True)]
    study.set_attribute(attributes.RUNS, numbered)


def _stored_runs(study: TuningStudy) -> tuple[Trial, ...]:
    """The runs after the search of a tune that was killed before it had its result."""
    try:
        return result_files.decode_runs(study.attribute(attributes.RUNS) or [])
    except ValidationError:
        return ()
