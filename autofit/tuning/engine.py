"""The engine: describe the workload, search, confirm, and store the result.

    TuneRequest ── describe ──> Problem ──> search ──> own batch ──> confirm ──> TuneRecord
                                   ^           │
                                   └───────────┘  the user's code fails with a value: the same without it

    search     ask the sampler for a config ──> run it in a process ──> tell; until the sampler has settled, or trials or
               seconds run out
    own batch  the same with the batch size of the baseline, at most two trials more
    confirm    rounds of longer runs of the baseline and of what is likely to be faster, until each answer is decided

What happens when

    a trial runs out of memory  it is told like any other trial; the sampler proposes nothing that would take as much
    the user's code raises      the tune ends with its traceback. If it runs with other values, it goes on without this one
    `max_seconds` is reached    the trial that runs is ended, and not stored. The budget has left time to confirm; an answer
                                that could not be confirmed says so, and how many seconds it needs
    Ctrl-C or kill              each trial was stored when it ended: the next tune of this request goes on after it
    a confirming run fails      its config is out, for later tunes as well; the next best one is confirmed
    nothing fits                `NothingFitsError` is raised, and stored as the result of the request

This module prints nothing: the caller receives events.
"""

from __future__ import annotations

import time
from dataclasses import replace

from autofit.errors import AutofitError, NothingFitsError, StorageError, TuneError
from autofit.records.description import Description
from autofit.records.events import Activity, Described, Emit, Notice, TrialEnded
from autofit.records.result import TuneLog, TuneRecord
from autofit.records.states import Outcome
from autofit.records.trial import KERAS_DEFAULTS, FitConfig, Trial
from autofit.records.units import counted
from autofit.search.sampler import FrontierSampler
from autofit.storage import attributes
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import notices
from autofit.tuning.budget import OWN_BATCH_TRIALS
from autofit.tuning.confirm import Confirmation
from autofit.tuning.failure import no_result_error, nothing_fits_error, out_of_time_error
from autofit.tuning.problem import Problem, build_problem, with_one_size, with_own_steps
from autofit.tuning.record import failed_tune, record_of, store
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described, require_user_code_ran

_ESTIMATED_BATCHES = (1, 4, 16, 64)  # memory is estimated for these multiples of the baseline's batch size


def tune(request: TuneRequest, launcher: Launcher, emit: Emit) -> TuneRecord:
    """Find the fastest config that fits, confirm it, and store the result."""
    engine = _Engine(request, launcher, emit)
    try:
        return engine.run()
    except AutofitError as error:
        engine.fail(error)
        raise
    finally:
        engine.study.close()


class _Engine:
    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self._emit, self._started_at = emit, time.time()
        self.study = TuningStudy(
            request.settings.storage,
            request.fingerprint(),
            request.limits,
            request.settings.options.max_trial_seconds,
            lambda text: emit(Notice(text)),
            fresh=request.fresh,
        )
        self._request = replace(request, limits=self.study.limits)
        if request.limits != self.study.limits:
            emit(Notice(notices.lowered(self.study.limits)))
        self._runner = TrialRunner(self._request, launcher, emit)
        self._description: Description | None = None
        self._describing_seconds = 0.0
        self._earlier: tuple[Trial, ...] = ()  # trials of an earlier tune
        self._too_slow: list[Trial] = []  # ended at max_seconds; not stored, as they may finish in a tune with more time
        self._confirmation: Confirmation | None = None

    def run(self) -> TuneRecord:
        problem = self._problem(self._describe())
        self._announce(problem)

        problem, stop_reason = self._search(problem)
        if problem.own_batch is not None and any(t.measurement.outcome is Outcome.OK for t in self.study.trials()):
            problem, _ = self._search(problem, at_own_batch=True)

        self._confirmation = Confirmation(problem, self._runner, self.study)
        answers = self._confirmation.run()
        if answers is None:
            raise no_result_error(problem, self._runner, self._trials(), len(self._earlier))
        if (text := notices.at_edge(problem, answers[0].config)) is not None:
            self._emit(Notice(text))
        record = record_of(problem, self._log(), answers, stop_reason)
        store(self.study, self._request, record)
        return record

    def _search(self, problem: Problem, *, at_own_batch: bool = False) -> tuple[Problem, str]:
        """Run what the sampler proposes until there is a reason to stop; return the reason, with the problem at the end.

        At the own batch size, a few more trials may run than `max_trials`, also in a tune that is resumed.
        """
        study, budget, most = self.study, self._runner.budget, problem.settings.max_trials
        sampler: FrontierSampler | None = None  # a new one for each problem
        if at_own_batch:
            most = min(len(self._trials()), most) + OWN_BATCH_TRIALS
        while True:
            sampler = sampler or (problem.at_own_batch() if at_own_batch else problem).sampler()
            sampler.trials = trials = self._trials()
            plan = budget.plan(trials, problem)
            stop_reason = sampler.decide(trials).stop_reason
            stop_reason = stop_reason or budget.stop_reason(plan, trials, most, len(self._earlier), len(self._too_slow))
            if stop_reason is not None:
                return problem, stop_reason

            config = study.ask(sampler, sampler.suggest)
            doing = f"trial {len(trials) + 1} of at most {most}" + ", at your own batch size" * at_own_batch
            activity = Activity(doing, config, why=str(sampler.proposal), reserved_seconds=plan.reserved_seconds)
            measurement = self._runner.search_trial(config, trials, activity, plan.trial_seconds)
            trial = Trial(config, measurement, activity.why)

            if measurement.is_too_slow and plan.trial_seconds < budget.most_trial_seconds:
                self._too_slow.append(trial)
                if plan.reserved_seconds:
                    self._emit(Notice(notices.cut_short(trial)))
            elif (without := self._without_value(problem, trial)) is not None:
                problem, sampler = without, None
            else:
                self._emit(TrialEnded(study.tell(trial, problem.space.knobs())))
                require_user_code_ran(measurement)

    def _describe(self) -> Description:
        """Describe the workload with the baseline's batch size or, if that does not fit, with one sample on each device."""
        runner, asked, replicas = self._runner, self._request.asked_baseline, self._request.placement.count
        self.study.set_user_attributes(self._request.metadata())
        usual = asked.batch_size or KERAS_DEFAULTS.batch_size or 1
        described = runner.describe(asked, batch_sizes=(*(usual * factor for factor in _ESTIMATED_BATCHES), 1))
        if not isinstance(described, Description) and described.outcome.is_oom:
            smallest = replace(asked, batch_size=replicas, workers=1, use_multiprocessing=False)
            described = runner.describe(smallest, note=f", batch {replicas}")
            if not isinstance(described, Description):
                raise nothing_fits_error(runner, Trial(smallest, described))
        if not isinstance(described, Description):
            if described.outcome is Outcome.TIMEOUT and not runner.budget.seconds_left():
                raise out_of_time_error(runner.budget, "the model and the data were built")
            raise not_described(described)
        self._describing_seconds = runner.budget.seconds()
        if self.study.attribute(attributes.MODEL) not in (None, described.fingerprint):
            # the source code is the same, or the study would be another
            self.study.reset()
            self.study.set_user_attributes(self._request.metadata())
            self._emit(Notice("the model or the shape of its data has changed; the trials of earlier tunes are deleted"))
        self.study.set_attribute(attributes.MODEL, described.fingerprint)
        return described

    def _problem(self, description: Description) -> Problem:
        self._description = description
        problem = build_problem(self._request, description, self.study)
        self.study.is_allowed = problem.allows
        return problem

    def _announce(self, problem: Problem) -> None:
        request, settings, self._earlier = self._request, problem.settings, self.study.trials()
        self._emit(
            Described(
                problem.description,
                problem.limits,
                request.machine,
                request.placement.name,
                self._earlier,
                settings.max_trials,
                settings.max_seconds,
                self._describing_seconds,
                tuple(problem.space.knobs()),
            )
        )
        if self.study.stale:
            trials = counted(len(self.study.stale), "trial")
            self._emit(Notice(f"not reused: {trials} of an earlier tune with less memory or time than this one"))
        for text in notices.before(problem):
            self._emit(Notice(text))

    def _without_value(self, problem: Problem, failed: Trial) -> Problem | None:
        """Return the problem without a value that the user's code fails with; None if it did not, or fails with all."""
        if failed.measurement.outcome is not Outcome.ERROR:
            return None
        description = with_own_steps(problem, failed)
        if description is not None:
            self._emit(Notice(notices.own_steps(description)))
        elif self._runs_at_baseline_batch(problem, failed.config):
            description = with_one_size(problem, failed)
            self._emit(Notice(notices.one_size(description)))
        return None if description is None else self._problem(description)

    def _runs_at_baseline_batch(self, problem: Problem, failed: FitConfig) -> bool:
        """Return whether the user's code runs with the baseline's batch size, and with no other batch size so far.

        If no trial has finished, the baseline is run to find out. If the baseline is not in the user's space, it must not
        run, and the answer is False.
        """
        baseline = problem.baseline
        if baseline.batch_size in (None, failed.batch_size) or not problem.baseline_may_win:
            return False
        trials = self.study.trials()
        finished_sizes = {t.config.batch_size for t in trials if t.measurement.outcome is Outcome.OK}
        if finished_sizes:
            return finished_sizes == {baseline.batch_size}
        activity = Activity("your code failed; trying the baseline's batch size", baseline)
        measurement = self._runner.search_trial(baseline, trials, activity, self._runner.budget.deadline_seconds())
        if measurement.outcome is Outcome.OK:
            self._emit(TrialEnded(self.study.add(Trial(baseline, measurement, activity.doing), problem.space.knobs())))
        return measurement.outcome is Outcome.OK

    def _trials(self) -> tuple[Trial, ...]:
        return (*self.study.trials(), *self._too_slow)

    def fail(self, error: AutofitError) -> None:
        """Add the record of the tune to an error. Store it as the result if nothing fits; else remove an empty study."""
        if isinstance(error, StorageError):
            return
        if isinstance(error, TuneError):
            error.tune = failed_tune(self._log(), error)
        if isinstance(error, NothingFitsError) and error.tune is not None:
            store(self.study, self._request, error.tune)
        elif not self.study.trials():
            self.study.remove()

    def _log(self) -> TuneLog:
        """Return the log of everything that has run so far; `stage` is set in trials that ran after the search."""
        request = self._request
        runs = self._confirmation.runs if self._confirmation is not None else ()
        later = {run.number: run for run in runs}
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self._description,
            trials=tuple(later.get(trial.number, trial) for trial in self.study.trials()),
            runs=runs,
            seconds=self._runner.budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            call_source=request.call_source,
            placement=request.placement,
            study=request.fingerprint(),
        )
