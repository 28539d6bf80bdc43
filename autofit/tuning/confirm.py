"""Choose among the trials of a search, and confirm the choice.

    finalists ──> run again if noise leaves the choice open
        │
        └──> run the chosen config and the baseline in turn ──> was a rival much faster in the search? run it again
                    │                                              │
              a run failed: store it, choose again           take the faster; if equally fast, the nearer to the baseline

Every run is stored when it ends, so a tune that was killed resumes where it stopped.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from autofit.records.events import Activity, Notice, TrialEnded
from autofit.records.result import KEPT_PAIRS, DataForm, RateEstimate, Recommendation
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.records.units import counted, format_rate
from autofit.search import selection
from autofit.search.decision import Proposer
from autofit.storage import attributes, result_files
from autofit.storage.study import TuningStudy
from autofit.tuning.pairs import Pair
from autofit.tuning.prepare import Prepared
from autofit.tuning.runner import TrialRunner, require_user_code_ran

_VALIDATION_SHRINK_FACTOR = 4  # if validation does not fit, its batch size is divided by this


class Confirmation:
    """Chooses among the trials of a search, and compares the choice with the baseline in further runs.

    The baseline is recommended only if it is in the space. The study holds the trials of the search; later runs that fail
    are added to it.
    """

    def __init__(self, runner: TrialRunner, study: TuningStudy, proposer: Proposer, prepared: Prepared) -> None:
        self._runner, self._study, self._proposer, self._knobs = runner, study, proposer, prepared.space.knobs()
        self._baseline, self._baseline_may_win = prepared.baseline, prepared.baseline in prepared.space
        request = runner.request
        self._limits, self._tolerance = request.limits, request.settings.tolerance
        self._placement = request.placement
        validates_arrays = request.call_source.validation_form is DataForm.ARRAYS
        self._may_shrink = validates_arrays or "batch_size" in prepared.description.validation_knobs
        try:  # the runs that a tune stored after its search, before it was killed without a result
            stored = result_files.TRIALS.validate_python(study.attribute(attributes.RUNS) or [])
        except ValidationError:
            stored = ()
        self._reusable = [run for run in stored if run.fits(self._limits)]
        failed = {trial.number for trial in study.trials() if trial.measurement.outcome is not Outcome.OK}
        self.runs = tuple(run for run in stored if run not in self._reusable and run.number in failed)
        self._estimates: dict[FitConfig, RateEstimate] = {}
        self._reruns: dict[FitConfig, RateEstimate] = {}
        self._no_time: frozenset[FitConfig] = frozenset()

    def run(self) -> Recommendation | None:
        """Choose a config and confirm it; return None if no trial remains to be chosen."""
        while finalists := self._finalists():
            chosen = self._rerun_finalists(finalists)
            confirmed = None if chosen is None else self._against_baseline(chosen)
            if confirmed is not None:
                choice = self._against_rival(confirmed)
                compared = {choice.config, *([] if choice.challenger is None else [choice.challenger.config])}
                ran = (*self._study.trials(), *self.runs)
                passed = selection.passed_over(compared, ran, self._limits, self._no_time)
                return replace(choice, passed_over=passed)
        return None

    def _finalists(self) -> tuple[Trial, ...]:
        trials = self._affordable(self._study.trials())
        rates = self._proposer.rates(trials)
        self._estimates = {config: RateEstimate(math.exp(mean), deviation) for config, (mean, deviation) in rates.items()}
        return selection.finalists(trials, self._limits, self._tolerance, self._baseline, rates)

    def _affordable(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Remove the configs for whose confirmation the time is too short, unless only the baseline would be left."""
        budget, baseline = self._runner.budget, self._baseline
        slow = {t.config for t in trials if not budget.allows_runs((t.config, baseline) * KEPT_PAIRS, trials)}
        others = selection.eligible([t for t in trials if t.config not in slow | {baseline}], self._limits)
        if not slow or not others:
            return trials
        self._no_time = frozenset(slow - {baseline})
        return [t for t in trials if t.config not in self._no_time or t.measurement.outcome is not Outcome.OK]

    def _rerun_finalists(self, finalists: Sequence[Trial]) -> Trial | None:
        """Run each finalist again and choose one; return None if a run fails.

        Earlier estimates and new readings are weighted by their variances. The readings that decide the choice are not
        reported as its rate, because the highest of several noisy readings is too high.
        """
        trials = self._study.trials()
        if len(finalists) < 2 or not self._runner.budget.allows_reruns(finalists, trials, self._baseline):
            return finalists[-1]
        for number, finalist in enumerate(finalists, 1):
            measurement = self._rerun(finalist, f"comparing finalists, {number} of {len(finalists)}")
            if self._was_cut_short(measurement):
                break
            if measurement.outcome is not Outcome.OK:
                return None
            self._reruns[finalist.config] = selection.updated(self._estimates[finalist.config], measurement)
        estimates = {**self._estimates, **self._reruns}
        rates = {finalist.config: estimates[finalist.config].samples_per_second for finalist in finalists}
        return selection.choose(finalists, self._limits, self._tolerance, self._baseline, rates)

    def _rerun(self, trial: Trial, doing: str) -> Measurement:
        """Measure the config of a trial again; a failure is stored in the study."""
        rerun = functools.partial(self._runner.rerun, trial.config, trial.measurement, Activity(doing, trial.config))
        return self._run(Stage.FINALIST, trial.config, None, rerun)

    def _against_baseline(self, chosen: Trial) -> Recommendation | None:
        """Run a config and the baseline in turn, and recommend one of them; return None if a run of the config fails."""
        tried = [t for t in self._study.trials() if t.config == self._baseline]
        finished = next((t for t in tried if t.measurement.outcome is Outcome.OK), None)
        pair = Pair(chosen, self._baseline, finished)
        while configs := self._next_round(pair):
            pair.rounds += 1
            for config in configs:
                self._run_of_pair(pair, config)
                if pair.is_over:
                    break
        if pair.chosen_failed:
            return None
        choice = pair.recommendation(self._tolerance, self._limits, baseline_may_win=self._baseline_may_win)
        if choice.challenger is not None:
            pairs = counted(choice.challenger.speedup.pairs, "pair")
            self._runner.emit(Notice(f"no gain was shown in {pairs} of confirming runs: the baseline is kept"))
        return choice

    def _next_round(self, pair: Pair) -> tuple[FitConfig, ...]:
        """Return the configs to run next, without those whose run no longer fits into the time left."""
        if pair.is_over or pair.rounds >= pair.most_rounds(self._tolerance):
            return ()
        budget, ran = self._runner.budget, (*self._study.trials(), *self.runs)
        configs = pair.next_round()
        if budget.allows_runs(configs, ran):
            return configs
        singles = [self._baseline] if self._baseline_may_win and pair.baseline_failure is None else []
        fitting = [config for config in (*singles, pair.chosen.config) if budget.allows_runs((config,), ran)]
        return tuple(fitting[:1]) if pair.rounds == 0 else ()

    def _run_of_pair(self, pair: Pair, config: FitConfig) -> None:
        """Run one config of a pair and record it; if only validation does not fit, repeat with smaller batches for it."""
        is_chosen = config == pair.chosen.config
        stage, name = (Stage.CHOSEN, "the chosen config") if is_chosen else (Stage.BASELINE, "the baseline")
        doing = f"confirming {name}, run {pair.rounds} of at most {pair.most_rounds(self._tolerance)}"
        measured = (t.measurement for t in self._study.trials() if t.config == config and t.measurement.samples_per_second)
        reference, activity = next(measured, pair.chosen.measurement), Activity(doing, config)
        validates = not pair.runs.get(config)  # only in the first run: the memory of validation counts, its time does not
        confirm = functools.partial(self._runner.confirm, config, reference, activity, validates=validates)
        size = pair.validation_batch_size if is_chosen else None
        measurement = self._run(stage, config, size, functools.partial(confirm, size))
        while is_chosen and self._only_validation_failed(config, measurement, size):
            larger = size or config.batch_size or 1
            size = pair.validation_batch_size = self._placement.shared(max(1, larger // _VALIDATION_SHRINK_FACTOR))
            self._runner.emit(Notice(f"validation does not fit with batch size {larger}; trying {size}"))
            measurement = self._run(stage, config, size, functools.partial(confirm, size))
        if measurement.outcome is Outcome.OK:
            pair.runs.setdefault(config, []).append(measurement)
        elif self._was_cut_short(measurement):
            pair.out_of_time = True
        elif is_chosen:
            pair.chosen_failed = True
        else:
            pair.baseline_failure = measurement

    def _against_rival(self, confirmed: Recommendation) -> Recommendation:
        """Confirm a config whose rate in the search was far above the confirmed rate, if another run repeats that rate.

        If the baseline is also slower than in the search, the machine has become slower, and that part of the difference
        does not count. Of the two configs, return the one that is shown to be faster than the baseline. If both are or
        neither is, return the faster one; if their rates are within the tolerance, return the one nearer to the baseline.
        """
        trials, rate = self._study.trials(), confirmed.samples_per_second
        noise = (confirmed.spread or 0.0) / 2
        compared = {confirmed.config, *(run.config for run in self.runs if run.stage in (Stage.CHOSEN, Stage.BASELINE))}
        rival = selection.overlooked(trials, self._limits, compared, self._slowdown() * rate, noise)
        if rival is None or not self._runner.budget.allows_reruns((rival,), trials, self._baseline):
            return confirmed
        self._runner.emit(
            Notice(
                f"the choice was confirmed at {format_rate(rate)} samples/s; another config was far faster in the search, "
                "and is measured again"
            )
        )
        rerun = self._rerun(rival, "comparing again")
        if rerun.outcome is not Outcome.OK:
            return confirmed
        least = max(math.log1p(self._tolerance), math.hypot(noise, rerun.rate_noise))  # the first reading was selected
        lead = math.log(_rate(rerun) / rate)
        second = self._against_baseline(rival) if lead > least else None
        if second is None or second.config == confirmed.config:
            return confirmed
        if confirmed.speedup.is_shown is not second.speedup.is_shown:
            return confirmed if confirmed.speedup.is_shown else second
        rates = {choice.config: choice.samples_per_second for choice in (confirmed, second)}
        nearest = selection.nearest(rates, self._tolerance, self._baseline)
        return second if nearest == second.config else confirmed

    def _slowdown(self) -> float:
        """Return the ratio of the baseline's rate in the search to its rate in confirming runs; 1 if one is unknown."""
        searched = [trial for trial in self._study.trials() if trial.config == self._baseline]
        confirmed = [run for run in self.runs if run.stage is Stage.BASELINE]
        rates = [[rate for trial in ran if (rate := _rate(trial.measurement))] for ran in (searched, confirmed)]
        return statistics.median(rates[0]) / statistics.median(rates[1]) if all(rates) else 1.0

    def _run(
        self, stage: Stage, config: FitConfig, validation_batch_size: int | None, measure: Callable[[], Measurement]
    ) -> Measurement:
        """Run a config after the search, or reuse a stored run of a tune that was killed.

        A failure counts against its config. A run that `max_seconds` cut short is not a failure, and is not stored.
        """
        key = stage, config, validation_batch_size
        trial = next((run for run in self._reusable if (run.stage, run.config, run.validation_batch_size) == key), None)
        if trial is not None:
            self._reusable.remove(trial)
        else:
            measurement = require_user_code_ran(measure())
            trial = Trial(config, measurement, stage=stage, validation_batch_size=validation_batch_size)
        if self._was_cut_short(trial.measurement):
            self._runner.emit(Notice(f"{config}: the run ended before it was complete, because max_seconds is used up"))
            return trial.measurement
        failed = trial.measurement.outcome is not Outcome.OK
        may_shrink = self._only_validation_failed(config, trial.measurement, validation_batch_size)
        if failed and stage is not Stage.BASELINE and not may_shrink:
            trial = self._study.add(trial, self._knobs)
        self.runs = (*self.runs, trial)
        stored = result_files.TRIALS.dump_python((*self.runs, *self._reusable), mode="json")
        self._study.set_attribute(attributes.RUNS, stored)
        self._runner.emit(TrialEnded(trial))
        return trial.measurement

    def _only_validation_failed(self, config: FitConfig, measurement: Measurement, size: int | None) -> bool:
        """Return whether a run ran out of memory in its validation, and a smaller validation batch can be tried."""
        phase = measurement.evidence.phase
        in_validation = measurement.outcome.is_oom and phase is not None and phase.validates
        return self._may_shrink and in_validation and (size or config.batch_size or 1) > self._placement.count

    def _was_cut_short(self, measurement: Measurement) -> bool:
        """Return whether a run was ended because the tune ran out of time, which does not count against its config."""
        return measurement.outcome is Outcome.TIMEOUT and not self._runner.budget.seconds_left()


def _rate(measurement: Measurement) -> float:
    return measurement.samples_per_second or 0.0
