"""Run the rounds that confirm the answers of a tune (`answers.py` decides what runs and when it ends).

    estimated rates of all readings ──> candidates ──> rounds of runs ──> answers
             └───────────── the runs are readings ──────────┘

Every run is stored when it ends, so a tune that was killed resumes where it stopped.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from pydantic import ValidationError

from autofit.records.events import Activity, Notice, TrialEnded
from autofit.records.intervals import pooled_half_width
from autofit.records.result import LOOKS, Answer, Challenger
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.search import failures
from autofit.search.rates import estimated_rates, ran
from autofit.search.space import nearest
from autofit.storage import result_files
from autofit.storage.study import TuningStudy
from autofit.tuning.answers import Answers, Contest
from autofit.tuning.problem import Problem
from autofit.tuning.runner import TrialRunner, raise_user_error
from autofit.tuning.settings import LARGEST

_VALIDATION_SHRINK_FACTOR = 4  # if validation does not fit, its batch size is divided by this


class Confirmation:
    """Confirms the likeliest best configs of a search in rounds of further runs.

    The study holds the trials of the search; later runs that fail are added to it.
    """

    def __init__(self, problem: Problem, runner: TrialRunner, study: TuningStudy) -> None:
        self._problem, self._runner, self._study = problem, runner, study
        self._baseline, self._tolerance = problem.baseline, problem.settings.options.tolerance
        may_win = problem.baseline_may_win
        self._answers = Answers(self._baseline, self._tolerance, problem.own_batch, baseline_may_win=may_win)
        validates_arrays = problem.request.call_source.validation_form == "arrays"
        self._may_shrink = validates_arrays or "batch_size" in problem.description.validation_knobs
        self._validation_sizes: dict[FitConfig, int] = {}
        try:  # the runs that a tune stored after its search, before it was killed without a result
            stored = result_files.TRIALS.validate_python(study.attribute(result_files.RUNS) or [])
        except ValidationError:
            stored = ()
        self._reusable = [run for run in stored if run.fits(problem.limits)]
        failed = {trial.number for trial in study.trials() if trial.measurement.outcome is not Outcome.OK}
        self.runs = tuple(run for run in stored if run not in self._reusable and run.number in failed)
        self._unconfirmed: FitConfig | None = None  # likely the fastest, but too late to confirm
        self._is_over = False  # the time for confirming is

    def run(self) -> tuple[Answer, Answer | None] | None:
        """Confirm the answers: the fastest config, and that of the own batch size; None if no trial may be chosen."""
        answers, budget, has_own = self._answers, self._runner.budget, self._problem.own_batch is not None
        while self._eligible():
            if self._problem.settings.batch_size == LARGEST:
                answers.hold(max(self._eligible(), key=lambda trial: trial.config.batch_size or 1).config)
            elif not self._is_over and answers.propose(self._estimated()):
                self._compare()
                continue
            held = (answers.same_batch.answer, answers.fastest.answer)
            alone = next((config for config in held if config is not None and not self._runs_of(config)), None)
            if alone is None or not budget.allows_rounds((alone,), 1, self._ran(), is_first=True):
                break
            if self._run(alone) is None and alone in (answers.same_batch.answer, answers.fastest.answer):
                break  # it was cut short; had it failed, another config might be the answer
        own = self._answer(answers.same_batch) if has_own else None
        if own is None or answers.fastest.answer != answers.same_batch.answer or self._unconfirmed is not None:
            fastest = self._answer(answers.fastest) or own
        else:
            needed = answers.fastest.needed_seconds or own.needed_seconds
            fastest = replace(own, challenger=self._challenger(answers.fastest) or own.challenger, needed_seconds=needed)
        return None if fastest is None else (fastest, own if has_own else fastest)

    def _estimated(self) -> dict[FitConfig, float]:
        """Return the estimated rate of each config that may be chosen, and that of the baseline, by all readings."""
        context, configs = self._problem.context, dict.fromkeys(trial.config for trial in self._eligible())
        if configs and self._answers.baseline_may_win:
            configs[self._baseline] = None
        runs = [run for run in ran(self._ran()) if run.stage is not Stage.SEARCH]
        searched = tuple(trial for trial in ran(self._ran()) if trial.stage is Stage.SEARCH)
        if not runs:
            return estimated_rates(searched, list(configs), context)
        # a machine that has become slower since the search has slowed down all configs
        earlier = (*searched, *context.warm_start)
        return estimated_rates(runs, list(configs), replace(context, warm_start=earlier))

    def _eligible(self) -> list[Trial]:
        """Return the trials and runs that may be chosen."""
        eligible = failures.eligible(self._ran(), self._problem.limits)
        return [trial for trial in eligible if self._answers.baseline_may_win or trial.config != self._baseline]

    def _ran(self) -> tuple[Trial, ...]:
        """Return the trials of the study and the runs that finished; those that count against their config are trials."""
        return (*self._study.trials(), *(run for run in self.runs if run.measurement.outcome is Outcome.OK))

    def _runs_of(self, config: FitConfig) -> list[Measurement]:
        """Return the confirming runs of a config that finished."""
        return [r.measurement for r in self.runs if r.config == config and r.measurement.outcome is Outcome.OK]

    def _compare(self) -> None:
        """Run rounds until the open contests are decided, or no time is left."""
        answers = self._answers
        while answers.is_open:
            rounds, is_first = answers.rounds_to_look()
            if not self._runner.budget.allows_rounds(answers.next_round(), rounds, self._ran(), is_first=is_first):
                self._cut(rounds)
                continue
            for _ in range(rounds):
                rates: dict[FitConfig, float] = {}
                for config in (configs := answers.next_round()):
                    measurement = self._run(config)
                    if measurement is None:
                        break
                    rates[config] = measurement.samples_per_second or 0.0
                if len(rates) < len(configs):
                    break
                answers.add_round(rates)

    def _cut(self, rounds: int) -> None:
        """Give up what the time for these rounds does not allow: the comparison of other batch sizes first."""
        answers = self._answers
        needed = self._runner.budget.needed_seconds(answers.next_round(), rounds, self._ran())
        self._is_over, candidate = True, answers.fastest.candidate
        if candidate is not None:
            answers.fastest.needed_seconds = needed
            if needed and answers.count(candidate) < LOOKS[0] and len(answers.fastest.candidates) == 1:
                self._unconfirmed = candidate
        if candidate is not None and answers.same_batch.is_open:
            answers.fastest.is_open = False
        else:
            answers.same_batch.needed_seconds = needed if answers.same_batch.is_open else None
            answers.give_up()

    def _run(self, config: FitConfig) -> Measurement | None:
        """Run a config, or take the stored run of a tune that was killed; None if it failed or `max_seconds` cut it off.

        A failure excludes its config. If only validation does not fit, the run is repeated with smaller validation batches.
        Only the first run of a config validates: the memory of validation counts, its time does not.
        """
        is_baseline, done = config == self._baseline, len(self._runs_of(config))
        stage, name = (Stage.BASELINE, "the baseline") if is_baseline else (Stage.CHOSEN, "a faster config")
        timed = ran(self._ran())
        measured = next((trial for trial in timed if trial.config == config), timed[0]).measurement
        last = f"{LOOKS[0]} to {LOOKS[-1]}" if self._answers.is_open else "1"
        activity = Activity(f"confirming {name}, run {done + 1} of {last}", config)
        while True:
            size = self._validation_sizes.get(config)
            run = self._stored_run(stage, config, size)
            if run is None:
                measurement = self._runner.confirm(config, measured, activity, size, validates=not done)
                run = Trial(config, raise_user_error(measurement), stage=stage, validation_batch_size=size)
            outcome = run.measurement.outcome
            if outcome is Outcome.TIMEOUT and not self._runner.budget.seconds_left():
                text = f"{config}: the run ended before it was complete, because max_seconds is used up"
                self._runner.emit(Notice(text))
                self._cut(LOOKS[0])
                self._answers.give_up()
                return None
            smaller = None if is_baseline else self._smaller_validation_batch(run)
            if outcome is not Outcome.OK and not is_baseline and smaller is None:
                run = self._study.add(run, self._problem.space.knobs())
            self.runs = (*self.runs, run)
            stored = result_files.TRIALS.dump_python((*self.runs, *self._reusable), mode="json")
            self._study.set_attribute(result_files.RUNS, stored)
            self._runner.emit(TrialEnded(run))
            if smaller is None:
                break
            self._runner.emit(
                Notice(f"validation does not fit with batch size {size or config.batch_size}; trying {smaller}")
            )
            self._validation_sizes[config] = smaller
        if outcome is Outcome.OK:
            return run.measurement
        self._answers.drop(config, outcome)
        return None

    def _stored_run(self, stage: Stage, config: FitConfig, size: int | None) -> Trial | None:
        key = stage, config, size
        run = next((run for run in self._reusable if (run.stage, run.config, run.validation_batch_size) == key), None)
        if run is not None:
            self._reusable.remove(run)
        return run

    def _smaller_validation_batch(self, run: Trial) -> int | None:
        """Return a batch size to validate with if only validation did not fit; None if it did, or has no smaller one."""
        phase, placement = run.measurement.evidence.phase, self._problem.request.placement
        size = run.validation_batch_size or run.config.batch_size or 1
        only_validation = run.measurement.outcome.is_oom and phase is not None and phase.validates
        if not self._may_shrink or not only_validation or size <= placement.count:
            return None
        return placement.shared(max(1, size // _VALIDATION_SHRINK_FACTOR))

    def _answer(self, contest: Contest) -> Answer | None:
        """Return an answer with the figures of its runs; if it has not run, the likeliest best config of the search."""
        config = contest.answer
        if contest is self._answers.fastest and self._unconfirmed is not None:
            config = self._unconfirmed
        among = {t.config for t in self._eligible() if contest is self._answers.fastest or self._answers.is_own(t.config)}
        if config not in among:
            estimated = {other: rate for other, rate in self._estimated().items() if other in among}
            config = nearest(estimated, self._tolerance, self._baseline) if estimated else None
        if config is None:
            return None
        runs = self._runs_of(config)
        measured = [trial.measurement for trial in ran(self._ran()) if trial.config == config]
        counted = runs or measured[:1]
        rates = [m.samples_per_second or 0.0 for m in counted]
        spread = counted[0].spread
        logs = self._answers.log_rates(config)
        if len(logs) > 1:
            others = [self._answers.log_rates(other) for other in {r.config for r in self.runs} if other != config]
            spread = math.expm1(pooled_half_width(logs, *others))
        return Answer(
            config=config,
            samples_per_second=statistics.median(rates),
            spread=spread,
            device_peak_bytes=max((m.device_peak_bytes for m in measured if m.device_peak_bytes is not None), default=None),
            host_peak_bytes=max((m.host_peak_bytes for m in measured if m.host_peak_bytes is not None), default=None),
            speedup=self._answers.speedup(config),
            validation_batch_size=self._validation_sizes.get(config),
            challenger=self._challenger(contest),
            confirmed=bool(runs) and config != self._unconfirmed,
            needed_seconds=contest.needed_seconds,
        )

    def _challenger(self, contest: Contest) -> Challenger | None:
        """Return the last config that was compared with an answer without taking its place; None if there is none."""
        if not contest.candidates or contest.candidates[-1] == contest.answer:
            return None
        config = contest.candidates[-1]
        rates = [run.samples_per_second or 0.0 for run in self._runs_of(config)]
        trials = [trial.samples_per_second for trial in self._ran() if trial.config == config]
        return Challenger(config, statistics.median(rates or trials or [0.0]), self._answers.speedup(config))
