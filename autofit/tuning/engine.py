"""The engine: describe the workload, search, confirm, and store the result.

    TuneRequest ── describe ──> Problem ──> search ──> search at the baseline's batch size ──> confirm ──> TuneRecord
                                   ^           │
                                   └───────────┘  the user's code fails with a value of a knob: search again without it

The baseline is the user's present config. There are two answers: the fastest config with the baseline's batch size, so that
training makes the same updates, and the fastest of all. (If only one batch size is searched, they are one, and the second
search is left out.)

    search   ask the sampler for a config ──> run it in a process ──> record it; until the sampler has nothing better to
             propose, or trials or seconds run out
    confirm  rounds of longer runs of the baseline and of the configs that are likely to be faster, until each of these is
             proven to be faster, or given up

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
from autofit.records.trial import KERAS_DEFAULTS, FitConfig, Measurement, Trial
from autofit.records.units import counted
from autofit.search.frontier import FrontierSearch, LargestBatch
from autofit.search.sampler import BoundedSampler, FrontierSampler
from autofit.storage.study import TuningStudy
from autofit.trial.launcher import Launcher
from autofit.tuning import notices
from autofit.tuning.budget import OWN_BATCH_TRIALS
from autofit.tuning.confirm import Confirmation
from autofit.tuning.problem import Problem, build_problem, with_fixed_batch_size, with_fixed_steps
from autofit.tuning.record import failed_tune, no_result_error, nothing_fits_error, record_of, store
from autofit.tuning.request import TuneRequest
from autofit.tuning.runner import TrialRunner, not_described, raise_user_error
from autofit.tuning.settings import LARGEST

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


# What happens when
#
#   a trial runs out of memory   it is recorded like any other; the sampler proposes nothing that would take as much
#   the user's code raises       if it runs with the baseline's batch size, or with one step in a call of the train step,
#                                the tune drops the other values and continues; otherwise it ends with the traceback
#   `max_seconds` is reached     the trial that runs is ended, and not stored. The search stops early enough to confirm; an
#                                answer that could not be confirmed says so, and which `max_seconds` would do
#   Ctrl-C or kill               the trial that runs is lost. All others were stored when they ended: the next tune of the
#                                same request continues after the last one, and uses the confirming runs again
#   a confirming run fails       its config is excluded, also in later tunes; the next best one is confirmed
#   nothing fits                 `NothingFitsError` is raised, and stored as the result of the request
class _Engine:
    def __init__(self, request: TuneRequest, launcher: Launcher, emit: Emit) -> None:
        self._emit, self._started_at = emit, time.time()
        self.study = TuningStudy(
            request.settings.storage,
            request.fingerprint(),
            request.limits,
            request.settings.options.max_trial_seconds,
            self._notify,
            labels=request.labels(),
            fresh=request.fresh,
        )
        self._request = replace(request, limits=self.study.limits)
        if request.limits != self.study.limits:
            self._notify(notices.lowered(self.study.limits))
        self._runner = TrialRunner(self._request, launcher, emit)
        self._description: Description | None = None
        self._describing_seconds = 0.0
        self._resumed: tuple[Trial, ...] = ()  # trials of earlier tunes
        self._cut_off: list[Trial] = []  # at max_seconds; not stored, as they may finish in a tune with more time
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
            raise no_result_error(problem, self._runner, self._trials(), len(self._resumed))
        self._notify(notices.largest_tried(problem, answers[0].config))
        record = record_of(problem, self._log(), answers, stop_reason)
        store(self.study, self._request, record)
        return record

    def _search(self, problem: Problem, *, at_own_batch: bool = False) -> tuple[Problem, str]:
        """Search until there is a reason to stop; return the problem, without the values that were dropped, and the reason.

        At the baseline's batch size, where the models already know most, a few trials run in addition to `max_trials`.
        """
        study, budget, max_trials, where = self.study, self._runner.budget, problem.settings.max_trials, ""
        if at_own_batch:
            max_trials, where = min(len(self._trials()), max_trials) + OWN_BATCH_TRIALS, ", at your own batch size"
        sampler = _sampler(problem, at_own_batch=at_own_batch)
        while True:
            sampler.trials = trials = self._trials()
            plan = budget.plan(trials, problem)
            stop_reason = sampler.decide(trials).stop_reason or budget.stop_reason(
                plan, trials, max_trials, resumed=len(self._resumed), cut_off=len(self._cut_off)
            )
            if stop_reason is not None:
                return problem, stop_reason

            config = study.ask(sampler, sampler.suggest)
            doing = f"trial {len(trials) + 1} of at most {max_trials}{where}"
            activity = Activity(doing, config, why=str(sampler.proposal), reserved_seconds=plan.reserved_seconds)
            measurement = self._runner.search_trial(config, trials, activity, plan.trial_seconds)
            trial = Trial(config, measurement, activity.why)

            if measurement.ran_out_of_time and plan.trial_seconds < budget.max_trial_seconds:
                self._cut_off.append(trial)
                continue
            narrowed = self._narrowed(problem, trial)
            if narrowed is not None:
                problem, sampler = narrowed, _sampler(narrowed, at_own_batch=at_own_batch)
                continue
            self._emit(TrialEnded(study.tell(trial, problem.space.knobs())))
            raise_user_error(measurement)

    def _describe(self) -> Description:
        """Describe the workload with the baseline's batch size or, if that does not fit, with one sample on each device."""
        runner, asked, replicas = self._runner, self._request.asked_baseline, self._request.placement.count
        usual = asked.batch_size or KERAS_DEFAULTS.batch_size or 1
        described = runner.describe(asked, batch_sizes=(*(usual * factor for factor in _ESTIMATED_BATCHES), 1))
        if isinstance(described, Measurement) and described.outcome.is_oom:
            smallest = replace(asked, batch_size=replicas, workers=1, use_multiprocessing=False)
            described = runner.describe(smallest, note=f", batch {replicas}")
            if isinstance(described, Measurement) and described.outcome.is_oom:
                raise nothing_fits_error(runner, Trial(smallest, described))
        if isinstance(described, Measurement):
            raise not_described(described, runner.budget)
        self._describing_seconds = runner.budget.seconds()
        if self.study.forget_other_model(described.fingerprint):  # of the same source code, or the study would be another
            self._notify("the model or the shape of its data has changed; the trials of earlier tunes are deleted")
        return described

    def _problem(self, description: Description) -> Problem:
        self._description = description
        similar = self.study.similar_trials(self._request.warm_start_key(description))
        problem = build_problem(self._request, description, () if self._request.fresh else similar)
        self.study.is_allowed = problem.allows
        return problem

    def _announce(self, problem: Problem) -> None:
        request, settings, self._resumed = self._request, problem.settings, self.study.trials()
        self._emit(
            Described(
                problem.description,
                problem.limits,
                request.machine,
                request.placement.name,
                self._resumed,
                settings.max_trials,
                settings.max_seconds,
                self._describing_seconds,
                tuple(problem.space.knobs()),
            )
        )
        if self.study.stale:
            trials = counted(len(self.study.stale), "trial")
            self._notify(f"not reused: {trials} of an earlier tune with less memory or time than this one")
        for text in notices.before(problem):
            self._notify(text)

    def _narrowed(self, problem: Problem, trial: Trial) -> Problem | None:
        """Return the problem without the value with which the user's code failed; None if it ran, or always fails."""
        if trial.measurement.outcome is not Outcome.ERROR:
            return None
        description = with_fixed_steps(problem, trial)
        if description is None and self._runs_at_baseline_batch(problem, trial.config):
            description = with_fixed_batch_size(problem, trial)
        if description is None:
            return None
        for text in {*notices.fixed(description)} - {*notices.fixed(problem.description)}:
            self._notify(text)
        return self._problem(description)

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

    def _notify(self, text: str | None) -> None:
        if text is not None:
            self._emit(Notice(text))

    def _trials(self) -> tuple[Trial, ...]:
        return (*self.study.trials(), *self._cut_off)

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
        """Return the log of everything that has run so far."""
        request = self._request
        return TuneLog(
            limits=request.limits,
            machine=request.machine,
            device=request.placement.name,
            description=self._description,
            trials=self.study.trials(),
            runs=self._confirmation.runs if self._confirmation is not None else (),
            seconds=self._runner.budget.seconds(),
            describing_seconds=self._describing_seconds,
            started_at=self._started_at,
            call_source=request.call_source,
            placement=request.placement,
            study=request.fingerprint(),
        )


def _sampler(problem: Problem, *, at_own_batch: bool) -> FrontierSampler:
    """Return a new sampler; one that the user gave is restricted to what is predicted to fit."""
    settings, space = problem.settings, problem.space
    if at_own_batch:
        space = replace(space, batch_size=(problem.baseline.batch_size,))
    arguments = {"baseline": problem.baseline, **vars(problem.context)}
    if settings.options.sampler is not None:
        return BoundedSampler(settings.options.sampler, space, **arguments)
    search = LargestBatch if settings.batch_size == LARGEST else FrontierSearch
    return FrontierSampler(space, search=search, **arguments)
