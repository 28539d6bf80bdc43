"""Run the rounds that compare candidates with the baseline (`answers.py`), and make the answers (`delivery.py`).

estimated rates of all readings ──> candidates ──> rounds of runs ──> the likeliest best ──> a run of it, if it had none
         └───────────────────── the runs are readings ───────────────────────┘
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence, Set
from dataclasses import replace

from pydantic import ValidationError

from autofit.records.events import Activity
from autofit.records.intervals import pooled_half_width
from autofit.records.result import LOOKS, Answer, Challenger
from autofit.records.states import Outcome, Stage
from autofit.records.trial import FitConfig, Measurement, Trial
from autofit.search import failures
from autofit.search.rates import ran
from autofit.storage import result_files
from autofit.storage.study import TuningStudy
from autofit.tuning.answers import Answers, Contest
from autofit.tuning.delivery import Beliefs, delivered
from autofit.tuning.problem import Problem
from autofit.tuning.runner import TrialRunner, raise_user_error
from autofit.tuning.settings import LARGEST


class Confirmation:
    """Confirms the likeliest best configs of a search in rounds of `runs`; those that fail are added to the study, too."""

    def __init__(
        self, problem: Problem, runner: TrialRunner, study: TuningStudy, runs: list[Trial]
    ) -> None:
        self._problem, self._runner, self._study, self._runs = problem, runner, study, runs
        self._baseline, self._tolerance = (
            problem.baseline,
            problem.request.settings.options.tolerance,
        )
        may_win = self._baseline in problem.space
        self._answers = Answers(
            self._baseline, self._tolerance, problem.own_batch, baseline_may_win=may_win
        )
        try:  # the runs that a tune stored after its search, before it was killed without a result
            stored = result_files.TRIALS.validate_python(
                study.attributes.get(result_files.RUNS, [])
            )
        except ValidationError:
            stored = ()
        self._reusable = [run for run in stored if run.fits(problem.request.limits)]
        runs += [trial for trial in study.trials() if trial.stage is not Stage.SEARCH]
        self._is_over = False  # the time for confirming is

    def run(self) -> tuple[Answer, Answer | None] | None:
        """Confirm the answers: the fastest config, and that of the own batch size; None if no trial may be chosen."""
        answers, budget = self._answers, self._runner.budget
        is_compared = self._problem.request.settings.batch_size != LARGEST
        while eligible := self._eligible():
            if is_compared and not self._is_over and answers.propose(self._estimated()):
                self._compare()
                continue
            beliefs, among = self._beliefs(), {trial.config for trial in eligible}
            # the baseline may be an answer before it has run
            first = {answers.first} if is_compared and answers.first else set()
            chosen = self._chosen(beliefs, among | first)
            alone = next(
                (config for config in chosen if config and not self._runs_of(config)), None
            )
            if alone is None:
                break
            has_time, needed_seconds = budget.rounds_fit((alone,), 1, self._ran(), is_first=True)
            if has_time:
                self._run(alone)  # if it fails, another config may be the answer
                continue
            for contest, config in zip(answers.both, chosen, strict=True):
                if config == alone:
                    contest.needed_seconds = contest.needed_seconds or needed_seconds
            if alone not in among:
                chosen = self._chosen(beliefs, among)  # only what has run
            break
        else:
            return None
        own, fastest = chosen
        assert fastest is not None, "a trial may be chosen"
        answer = self._answer(answers.fastest, fastest, beliefs)
        if fastest == own or self._problem.own_batch is None:
            return answer, answer
        return answer, None if own is None else self._answer(answers.same_batch, own, beliefs)

    def _chosen(
        self, beliefs: Beliefs, among: Set[FitConfig]
    ) -> tuple[FitConfig | None, FitConfig | None]:
        """Choose the answers by all readings: that at the own batch size, if there is one, and the fastest."""
        if self._problem.request.settings.batch_size == LARGEST:  # without a comparison
            largest = max(among, key=lambda config: config.batch_size or 1)
            return largest, largest
        answers = self._answers
        # a config that lost does not return, whatever it read in the search
        among = {config for config in among if not self._is_beaten(config)} or among
        own_configs = {config for config in among if answers.is_own(config)}
        first = answers.first if answers.first in among else None
        rule = self._baseline, self._tolerance
        if not own_configs:
            return None, delivered(beliefs, among, first, *rule)
        own = delivered(beliefs, own_configs, first, *rule)
        return own, delivered(beliefs, among, own, *rule)

    def _is_beaten(self, config: FitConfig) -> bool:
        """Return whether the pairs of a config show that it gains less than the tolerance."""
        speedup = self._answers.speedup(config)
        least = 1 / (1 - self._tolerance)
        is_read = config != self._baseline and speedup.pairs >= LOOKS[0]
        return is_read and speedup.high is not None and speedup.high < least

    def _estimated(self) -> dict[FitConfig, float]:
        """Return the estimated rate of each config that may be chosen, and that of the baseline, by all readings."""
        rates = self._beliefs().rates()
        if self._answers.first is None:
            del rates[self._baseline]
        return rates

    def _beliefs(self) -> Beliefs:
        """Return what all readings say of the configs that may be chosen, and of the baseline."""
        context = self._problem.context
        configs = dict.fromkeys([*(trial.config for trial in self._eligible()), self._baseline])
        searched = tuple(trial for trial in ran(self._ran()) if trial.stage is Stage.SEARCH)
        runs = tuple(trial for trial in ran(self._ran()) if trial.stage is not Stage.SEARCH)
        if runs:  # a machine that has become slower since the search has slowed down all configs
            context = replace(context, warm_start=(*searched, *context.warm_start))
        return Beliefs(runs or searched, configs, context)

    def _eligible(self) -> list[Trial]:
        eligible = failures.eligible(self._ran(), self._problem.request.limits)
        return [
            trial
            for trial in eligible
            if self._answers.first is not None or trial.config != self._baseline
        ]

    def _ran(self) -> tuple[Trial, ...]:
        """Return the trials of the study and the runs that finished; those that count against their config are trials."""
        return (
            *self._study.trials(),
            *(run for run in self._runs if run.measurement.outcome is Outcome.OK),
        )

    def _runs_of(self, config: FitConfig) -> list[Measurement]:  # that finished
        return [
            r.measurement
            for r in self._runs
            if r.config == config and r.measurement.outcome is Outcome.OK
        ]

    def _compare(self) -> None:
        """Run rounds until the open contests are decided, or no time is left."""
        answers = self._answers
        while answers.is_open:
            rounds, is_first = answers.rounds_to_look()
            budget, configs = self._runner.budget, answers.next_round()
            has_time, needed_seconds = budget.rounds_fit(
                configs, rounds, self._ran(), is_first=is_first
            )
            if not has_time:
                self._cut(needed_seconds)
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

    def _cut(self, needed_seconds: float | None) -> None:
        """Give up rounds that the time does not allow, but `needed_seconds` would: those of other batch sizes first."""
        own, fastest, self._is_over = self._answers.same_batch, self._answers.fastest, True
        if fastest.is_open:
            fastest.needed_seconds = needed_seconds
            if own.is_open:
                fastest.is_open = False
                return
        own.needed_seconds = needed_seconds if own.is_open else None
        self._answers.give_up()

    def _run(self, config: FitConfig) -> Measurement | None:
        """Run a config, or reuse the stored run of a killed tune; None if it failed or `max_seconds` cut it off."""
        is_baseline, earlier, runner = (
            config == self._baseline,
            self._runs_of(config),
            self._runner,
        )
        stage, name = (
            (Stage.BASELINE, "the baseline") if is_baseline else (Stage.CHOSEN, "a faster config")
        )
        run = next(
            (run for run in self._reusable if (run.stage, run.config) == (stage, config)), None
        )
        if run is not None:
            self._reusable.remove(run)
        else:
            timed = ran(self._ran())
            measured = next(
                (trial for trial in timed if trial.config == config), timed[0]
            ).measurement
            last = f"{LOOKS[0]} to {LOOKS[-1]}" if self._answers.is_open else "1"
            activity = Activity(f"confirming {name}, run {len(earlier) + 1} of {last}", config)
            # only the first run of a config validates: the memory of validation counts, its time does not
            measurement = runner.confirm(config, measured, activity, earlier)
            if is_baseline:
                raise_user_error(measurement)
            run = Trial(config, measurement, stage=stage)
        outcome = run.measurement.outcome
        if outcome is Outcome.TIMEOUT and not runner.budget.seconds_left():
            _, needed_seconds = runner.budget.rounds_fit(
                self._answers.next_round(), LOOKS[0], self._ran(), is_first=True
            )
            self._cut(needed_seconds)
            if self._answers.is_open:  # both were
                self._cut(needed_seconds)
            return None
        if outcome is not Outcome.OK and not is_baseline:
            run = self._study.add(run, self._problem.space.knobs())
        self._runs.append(run)
        stored = result_files.TRIALS.dump_python((*self._runs, *self._reusable), mode="json")
        self._study.set_attribute(result_files.RUNS, stored)
        runner.emit(run)
        if outcome is Outcome.OK:
            return run.measurement
        self._answers.drop(config, outcome)
        return None

    def _answer(self, contest: Contest, config: FitConfig, beliefs: Beliefs) -> Answer:
        """Return an answer: a shown one with the figures of its runs, a likely one with those of all readings."""
        answers, runs = self._answers, self._runs_of(config)
        measured = [trial.measurement for trial in ran(self._ran()) if trial.config == config]
        speedup = answers.speedup(config)
        has_baseline = any(trial.config == self._baseline for trial in ran(self._ran()))
        is_known = has_baseline and answers.baseline_outcome is Outcome.OK
        probability = beliefs.probability(config, self._baseline) if is_known else None
        if config == self._baseline or speedup.is_shown or speedup.is_loss or not is_known:
            rate, spread = self._figures(config, runs or measured[:1])
        else:
            # the reading that made a config the best is too high
            (rate, spread), speedup = beliefs.rate(config), beliefs.speedup(config, self._baseline)
        own, challenger = answers.same_batch, None
        beaten = [
            one.candidates[-1]
            for one in ((contest, own) if answers.is_own(config) else (contest,))
            if one.candidates and one.candidates[-1] != config
        ]
        if beaten:
            rates = [trial.samples_per_second for trial in self._ran() if trial.config == beaten[0]]
            challenger = Challenger(beaten[0], statistics.median(rates), answers.speedup(beaten[0]))
        return Answer(
            config=config,
            samples_per_second=rate,
            spread=spread,
            device_peak_bytes=max(m.device_peak_bytes or 0 for m in measured) or None,
            host_peak_bytes=max(m.host_peak_bytes or 0 for m in measured) or None,
            speedup=speedup,
            probability=None if config == self._baseline else probability,
            challenger=challenger,
            confirmed=bool(runs),
            needed_seconds=contest.needed_seconds,
        )

    def _figures(
        self, config: FitConfig, counted: Sequence[Measurement]
    ) -> tuple[float, float | None]:
        """Return the median rate of some runs of a config, and its spread, by the scatter of the runs of all configs."""
        logs = self._answers.log_rates(config)
        rate = statistics.median(m.samples_per_second or 0.0 for m in counted)
        if len(logs) < 2:
            return rate, counted[0].spread
        others = {run.config for run in self._runs} - {config}
        scatter = pooled_half_width(logs, *map(self._answers.log_rates, others))
        return rate, math.expm1(scatter)
